# shellcheck shell=bash
# Follows a test script that bash runs with this file as BASH_ENV. The script itself is not changed.
#
# Appends to $INLOCK_TRACE, one line each:
#   R LINE                 a command at this line of the script's body is about to run
#   F LINE STATUS COMMAND  a check failed: the script calls its `fail` or `fail_count`
#   S LINE COMMAND         the script skips the rest
# LINE is the line of the body, also for a command in a function that the body calls. With INLOCK_CONTINUE=1 calls of
# `fail` are not carried out, so that the checks that follow a failed one run, too.

unset BASH_ENV
__inlock_last=

# __inlock_step STATUS LINE COMMAND
__inlock_step() {
    local depth=${#FUNCNAME[@]} line=$2
    # Here, since a shell that starts with this option looks for a debugger.
    shopt -s extdebug
    # FUNCNAME ends with main, BASH_LINENO with 0: the entry before is the line of the body that called a function.
    [ "$depth" -gt 2 ] && line=${BASH_LINENO[depth - 2]}
    case $3 in
        fail | fail\ * | fail_count\ *)
            printf 'F %s %s %s\n' "$line" "$1" "${3//$'\n'/ }" >> "$INLOCK_TRACE"
            echo "@@ line $line: ${3//$'\n'/ } (status $1)" >&"$__inlock_log"
            [ "$INLOCK_CONTINUE" != 1 ] || [ "${3%% *}" != fail ]
            return
            ;;
        "exit 77")
            printf 'S %s %s\n' "$line" "$3" >> "$INLOCK_TRACE"
            # No disk of scsi_debug: the tests that need none can go on.
            [ "$INLOCK_CONTINUE" != 1 ] || [[ " ${FUNCNAME[*]} " != *" add_"*device\ * ]]
            return
            ;;
        skip\ *)
            # A call that prepares the next checks has failed: they can go on.
            if [ "$INLOCK_CONTINUE" = 1 ] && [[ " ${FUNCNAME[*]} " == *" img_prepare "* ]]; then
                printf 'F %s %s %s\n' "$line" "$1" "${3//$'\n'/ }" >> "$INLOCK_TRACE"
                return 1
            fi
            printf 'S %s %s\n' "$line" "${3//$'\n'/ }" >> "$INLOCK_TRACE"
            ;;
        skip) printf 'S %s %s\n' "$line" "${3//$'\n'/ }" >> "$INLOCK_TRACE" ;;
        *) [ "$line" = "$__inlock_last" ] || printf 'R %s\n' "$line" >> "$INLOCK_TRACE" ;;
    esac
    __inlock_last=$line
    return 0
}
exec {__inlock_log}>&1
trap '__inlock_step "$?" "$LINENO" "$BASH_COMMAND"' DEBUG
