"""Runs a command on a pseudo-terminal and plays a dialogue.

Usage: terminal.py STEPS COMMAND...   STEPS is a JSON list of [wait for this text, then send this].
Instead of a text, `signal N` sends a signal, and `run COMMAND` runs a command of the shell to its end.
A text is sent once the command sleeps: a program that has written its prompt may be about to turn the echo off, and to
discard what was typed before.
Prints one JSON object: the transcript, the exit status (a signal as its negative number), whether the terminal echoed
while each step waited, and whether it echoes at the end.
"""
import fcntl, glob, json, os, select, signal, subprocess, sys, termios, time

steps = json.loads(sys.argv[1])
# The slave stays open here, so that the state of the terminal can be read after the command has exited.
master, slave = os.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.closerange(3, 64)
    # Signals ignored by a caller in the background would stay ignored; a user at a terminal ignores none.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
echoes = lambda: bool(termios.tcgetattr(slave)[3] & termios.ECHO)


def sleeps():
    """Whether all threads of the command wait for something."""
    try:
        states = [open(path).read().rpartition(")")[2].split()[0] for path in glob.glob(f"/proc/{pid}/task/*/stat")]
    except OSError:  # a thread has ended
        return False
    return set(states) == {"S"}


transcript, seen, echo, status = b"", 0, [], None
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    if select.select([master], [], [], 0.02)[0]:
        transcript += os.read(master, 65536)
        continue
    if steps and steps[0][0].encode() in transcript[seen:] and sleeps():
        seen = len(transcript)
        echo.append(echoes())
        send = steps.pop(0)[1]
        if send.startswith("signal "):
            os.kill(pid, int(send.split()[1]))
        elif send.startswith("run "):
            subprocess.run(send[4:], shell=True, check=True, stdout=subprocess.DEVNULL)
        else:
            os.write(master, send.encode("latin-1"))
        continue
    done, code = os.waitpid(pid, os.WNOHANG)
    if done:
        status = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
        while select.select([master], [], [], 0.02)[0]:
            transcript += os.read(master, 65536)
        break
if status is None:
    os.kill(pid, signal.SIGKILL)
print(json.dumps({"text": transcript.decode("latin-1"), "status": status, "echo": echo, "echo_after": echoes(),
                  "left": len(steps)}))
