"""Runs a command under ptrace, and copies its memory as it exits, and on entry to chosen system calls.

Usage: traced.py DIRECTORY CALLS COMMAND...   CALLS are names separated by commas, or empty.
Writes DIRECTORY/exit and DIRECTORY/call-N for the first calls: all memory that the process can have written, without
pages of zeroes. DIRECTORY/status has the exit status, a signal as its negative number. The command has the terminal,
input and output of this program.
"""
import ctypes, os, platform, signal, struct, sys

TRACEME, CONT, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 0, 7, 24, 0x4200, 0x420E
SYSGOOD, EXITKILL, TRACEEXIT, EVENT_EXIT = 1, 1 << 20, 1 << 6, 6
NUMBERS = {
    "x86_64": {"read": 0, "write": 1, "pwrite64": 18, "fsync": 74, "fdatasync": 75},
    "aarch64": {"read": 63, "write": 64, "pwrite64": 68, "fsync": 82, "fdatasync": 83},
}
MOST_CALLS = 12
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, pid, address=0, data=0):
    if libc.ptrace(request, pid, address, data) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


def copy_memory(pid, path):
    zeroes = bytes(4096)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(path, "wb") as out:
        for line in maps:
            words = line.split(maxsplit=5)
            name = words[5].strip() if len(words) > 5 else ""
            if "r" not in words[1] or name.startswith("[v") or (name.startswith("/") and "w" not in words[1]):
                continue
            start, end = (int(number, 16) for number in words[0].split("-"))
            while start < end:
                try:
                    piece = os.pread(memory.fileno(), min(end - start, 1 << 20), start)
                except OSError:
                    break
                for at in range(0, len(piece), 4096):
                    page = piece[at : at + 4096]
                    if page != zeroes:
                        out.write(page)
                start += len(piece)


directory, command = sys.argv[1], sys.argv[3:]
numbers = NUMBERS.get(platform.machine(), {})
calls = {numbers[name] for name in sys.argv[2].split(",") if name in numbers}
pid = os.fork()
if pid == 0:
    ptrace(TRACEME, 0)
    os.execvp(command[0], command)
# Ctrl-C on the terminal is for the command.
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
os.waitpid(pid, 0)
ptrace(SETOPTIONS, pid, 0, SYSGOOD | EXITKILL | TRACEEXIT)
copies = deliver = 0
while True:
    ptrace(SYSCALL if calls and copies < MOST_CALLS else CONT, pid, 0, deliver)
    deliver = 0
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        break
    stop = status >> 8
    if stop == signal.SIGTRAP | EVENT_EXIT << 8:
        copy_memory(pid, f"{directory}/exit")
    elif stop == signal.SIGTRAP | 0x80:
        info = ctypes.create_string_buffer(88)
        ptrace(GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
        operation, number = info.raw[0], struct.unpack_from("=Q", info.raw, 24)[0]
        if operation == 1 and number in calls:
            copy_memory(pid, f"{directory}/call-{copies}")
            copies += 1
    else:
        deliver = os.WSTOPSIG(status)
code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
with open(f"{directory}/status", "w") as file:
    file.write(str(code))
sys.exit(code if code >= 0 else 128 - code)
