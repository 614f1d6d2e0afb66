# shellcheck shell=bash
# For benchmarks in rounds: the machine and its load, and medians. Sourced.

# Prints the CPU, the number of CPUs and the load.
print_machine() {
    echo "# $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs), $(nproc) CPUs, load $(cut -d' ' -f1-3 /proc/loadavg)"
}

# Prints the load after the last round.
print_end() {
    echo "# load at the end $(cut -d' ' -f1-3 /proc/loadavg)"
}

# summarize FILE PROGRAM: sorts the lines of FILE, and runs an awk program that has median(LIST, N) over them, where
# LIST has N numbers with blanks between them. Prints its lines in order.
summarize() {
    sort "$1" | awk '
        function median(list, n,   a, i, j, t) {
            split(list, a, " ")
            for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (a[j] + 0 < a[i] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
            return a[int((n + 1) / 2)]
        }'"$2" | sort
}
