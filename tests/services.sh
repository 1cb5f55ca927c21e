# Prerequisites of the tests besides Rust, installed if missing. PostgreSQL and Redis are started on free loopback ports
# in temporary folders, and stopped by process id. Sourced by `run`; every function has a timeout.

POSTGRES_MAJOR=15
REDIS_MIN_MAJOR=7

say() { printf 'tests: %s\n' "$*" >&2; }

fail() {
    say "$1"
    exit "${2:-1}"
}

# Prints the folder with PostgreSQL's server programs of the pinned version or a later one. Fails if there is none.
postgres_bin() {
    local folder major
    for folder in "/usr/lib/postgresql/$POSTGRES_MAJOR/bin" "/usr/pgsql-$POSTGRES_MAJOR/bin" /usr/lib/postgresql/*/bin \
        "$(pg_config --bindir 2>/dev/null || true)" "$(dirname "$(command -v postgres 2>/dev/null || echo /none/none)")"; do
        [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ] || continue
        major=$("$folder/postgres" --version | sed -E 's/.*\) ([0-9]+).*/\1/')
        if [ "$major" -ge "$POSTGRES_MAJOR" ]; then
            printf '%s\n' "$folder"
            return 0
        fi
    done
    return 1
}

# Prints the name of the PostgreSQL package. A Debian release has one version, which may be later than the pinned one.
postgres_package() {
    if apt-cache show "postgresql-$POSTGRES_MAJOR" >/dev/null 2>&1; then
        printf 'postgresql-%s\n' "$POSTGRES_MAJOR"
    else
        printf 'postgresql\n'
    fi
}

redis_is_installed() {
    local version
    command -v redis-server >/dev/null 2>&1 || return 1
    version=$(redis-server --version | sed -E 's/.* v=([0-9]+)\..*/\1/')
    [ "$version" -ge "$REDIS_MIN_MAJOR" ]
}

# Prints the command prefix for installing as root: `env` as root, or `sudo -n env` if sudo needs no password.
elevation() {
    if [ "$(id -u)" -eq 0 ]; then
        printf 'env'
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        printf 'sudo -n env'
    else
        return 1
    fi
}

# apt_install ELEVATE PACKAGE…: installs packages with apt, without starting their services.
apt_install() {
    local elevate=$1 policy=/usr/sbin/policy-rc.d made=no status=0
    shift
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $elevate tee "$policy" >/dev/null
        $elevate chmod 755 "$policy"
        made=yes
    fi
    { $elevate DEBIAN_FRONTEND=noninteractive apt-get -qq update </dev/null &&
        $elevate DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" </dev/null; } >&2 || status=$?
    if [ "$made" = yes ]; then $elevate rm -f "$policy"; fi
    return "$status"
}

# Virtual environments require these modules, which Debian packages separately.
python_is_installed() { command -v python3 >/dev/null 2>&1 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

# Debian installs it outside of the PATH of users.
pgbouncer_program() { command -v pgbouncer 2>/dev/null || printf '/usr/sbin/pgbouncer\n'; }

# Installs missing packages. Without permission, it fails with the list of packages.
install_packages() {
    local missing=() elevate
    postgres_bin >/dev/null || missing+=("$(postgres_package)")
    redis_is_installed || missing+=("redis-server")
    python_is_installed || missing+=("python3-venv")
    [ -x "$(pgbouncer_program)" ] || missing+=("pgbouncer")
    [ -x /usr/sbin/haproxy ] || missing+=("haproxy")
    [ -x /usr/sbin/nginx ] || missing+=("nginx-light")
    command -v pebble >/dev/null 2>&1 || missing+=("pebble")
    command -v curl >/dev/null 2>&1 || missing+=("curl")
    command -v openssl >/dev/null 2>&1 || missing+=("openssl")
    command -v faketime >/dev/null 2>&1 || missing+=("faketime")
    command -v patch >/dev/null 2>&1 || missing+=("patch")
    [ -x /usr/sbin/nft ] || missing+=("nftables")
    command -v ip >/dev/null 2>&1 || missing+=("iproute2")
    [ -x /bin/kill ] || missing+=("procps")
    command -v node >/dev/null 2>&1 || missing+=("nodejs")
    command -v npm >/dev/null 2>&1 || missing+=("npm")
    command -v javac >/dev/null 2>&1 || missing+=("default-jdk-headless")
    command -v go >/dev/null 2>&1 || missing+=("golang-go")
    perl -MLWP -e1 2>/dev/null || missing+=("libwww-perl")
    # Machines and containers for the tests of conf/deploy.
    if [ -n "${POSTERN_TEST_DEPLOY:-}" ]; then
        command -v mmdebstrap >/dev/null 2>&1 || missing+=("mmdebstrap")
        command -v systemd-nspawn >/dev/null 2>&1 || missing+=("systemd-container")
        command -v podman >/dev/null 2>&1 || missing+=("podman")
        [ -x /usr/sbin/runc ] || missing+=("runc")
        command -v rpm >/dev/null 2>&1 || missing+=("rpm")
    fi
    command -v valgrind >/dev/null 2>&1 || missing+=("valgrind")
    command -v shellcheck >/dev/null 2>&1 || missing+=("shellcheck")
    [ "${#missing[@]}" -gt 0 ] || return 0
    elevate=$(elevation) && command -v apt-get >/dev/null 2>&1 ||
        fail "missing: ${missing[*]} (PostgreSQL $POSTGRES_MAJOR or later, Redis $REDIS_MIN_MAJOR or later), and this user may not install packages.
Install them and run this again. On Debian: apt-get install --no-install-recommends ${missing[*]}" 69
    say "installing ${missing[*]}"
    apt_install "$elevate" "${missing[@]}" || fail "could not install: ${missing[*]}. Install them manually and run this again." 69
    postgres_bin >/dev/null || fail "PostgreSQL $POSTGRES_MAJOR or later is still not found after installing ${missing[*]}" 69
    redis_is_installed || fail "Redis $REDIS_MIN_MAJOR or later is still not found after installing redis-server" 69
}

# Installs the browser for sign-in tests. If the system's archive has no package of these names, these tests are skipped.
install_browser() {
    local elevate
    if command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; then return 0; fi
    elevate=$(elevation) && command -v apt-get >/dev/null 2>&1 ||
        fail "missing: chromium and chromedriver, and this user may not install packages.
Install them and run this again. On Debian: apt-get install --no-install-recommends chromium chromium-driver" 69
    say "installing chromium"
    apt_install "$elevate" chromium chromium-driver || say "no chromium package in this system's archive: browser tests are skipped"
}

# Installs the independent implementations that Postern is tested against, with versions pinned by lock files.
install_peers() {
    local peer
    for peer in tests/peers/*/install; do
        "$peer" </dev/null || fail "$peer failed (see above)" 69
    done
}

# Prints a random port outside of the ephemeral range. It may be in use.
any_port() { printf '%s\n' $((20000 + (RANDOM * 32768 + RANDOM) % 12000)); }

# Prints the user for PostgreSQL, which does not run as root.
postgres_user() { if getent passwd postgres >/dev/null; then echo postgres; else echo nobody; fi; }

as_postgres() {
    if [ "$(id -u)" -ne 0 ]; then
        exec "$@"
    fi
    local user
    user=$(postgres_user)
    exec setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups "$@"
}

# start_postgres FOLDER: sets POSTGRES_PID and POSTERN_TEST_POSTGRES. POSTERN_TEST_MAX_CONNECTIONS is its max_connections, and
# POSTERN_TEST_FSYNC=off keeps its files in memory of the kernel, which the end of its process does not lose.
start_postgres() {
    local folder=$1 bin port
    bin=$(postgres_bin)
    mkdir -p "$folder/data"
    chmod 700 "$folder/data"
    if [ "$(id -u)" -eq 0 ]; then chown -R "$(postgres_user)" "$folder"; fi
    (cd "$folder" && as_postgres "$bin/initdb" --pgdata="$folder/data" --username=postern --auth=trust \
        --encoding=UTF8 --locale=C --no-sync) >"$folder/initdb.log" 2>&1 ||
        fail "initdb failed: $(tail -n 3 "$folder/initdb.log")"
    for _ in 1 2 3 4 5 6 7 8; do
        port=$(any_port)
        (cd "$folder" && as_postgres "$bin/postgres" -D "$folder/data" -p "$port" \
            -c listen_addresses=127.0.0.1 -c unix_socket_directories='' \
            -c max_connections="${POSTERN_TEST_MAX_CONNECTIONS:-200}" -c fsync="${POSTERN_TEST_FSYNC:-on}" -c synchronous_commit=on -c shared_buffers=256MB -c max_wal_size=4GB -c logging_collector=off) \
            >"$folder/postgres.log" 2>&1 </dev/null &
        POSTGRES_PID=$!
        if await_ready "$POSTGRES_PID" "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U postern; then
            export POSTERN_TEST_POSTGRES="postgres://postern@127.0.0.1:$port/postgres"
            return 0
        fi
        stop_process "$POSTGRES_PID"
        POSTGRES_PID=
    done
    fail "PostgreSQL did not start: $(tail -n 3 "$folder/postgres.log")" 69
}

# start_standby FOLDER PRIMARY: starts a standby of the server on port PRIMARY; sets POSTGRES_PID and
# POSTERN_TEST_POSTGRES.
start_standby() {
    local folder=$1 primary=$2 bin port
    bin=$(postgres_bin)
    if [ "$(id -u)" -eq 0 ]; then chown -R "$(postgres_user)" "$folder"; fi
    (cd "$folder" && as_postgres timeout 60 "$bin/pg_basebackup" -h 127.0.0.1 -p "$primary" -U postern -D "$folder/data" \
        --write-recovery-conf --wal-method=stream --checkpoint=fast --no-sync) >"$folder/basebackup.log" 2>&1 ||
        fail "pg_basebackup failed: $(tail -n 3 "$folder/basebackup.log")"
    for _ in 1 2 3 4 5 6 7 8; do
        port=$(any_port)
        (cd "$folder" && as_postgres "$bin/postgres" -D "$folder/data" -p "$port" \
            -c listen_addresses=127.0.0.1 -c unix_socket_directories='' \
            -c max_connections="${POSTERN_TEST_MAX_CONNECTIONS:-200}" -c hot_standby=on) \
            >"$folder/postgres.log" 2>&1 </dev/null &
        POSTGRES_PID=$!
        if await_ready "$POSTGRES_PID" "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U postern; then
            export POSTERN_TEST_POSTGRES="postgres://postern@127.0.0.1:$port/postgres"
            return 0
        fi
        stop_process "$POSTGRES_PID"
        POSTGRES_PID=
    done
    fail "the standby did not start: $(tail -n 3 "$folder/postgres.log")" 69
}

# start_pgbouncer FOLDER SERVER MODE: starts PgBouncer for the server on port SERVER, with default settings as far as
# possible; sets PGBOUNCER_PID and PGBOUNCER_PORT.
start_pgbouncer() {
    local folder=$1 server=$2 mode=$3 program bin port
    program=$(pgbouncer_program)
    bin=$(postgres_bin)
    for _ in 1 2 3 4 5 6 7 8; do
        port=$(any_port)
        printf '%s\n' '[databases]' "* = host=127.0.0.1 port=$server user=postern" '[pgbouncer]' \
            'listen_addr = 127.0.0.1' "listen_port = $port" 'unix_socket_dir =' 'auth_type = any' \
            "pool_mode = $mode" 'default_pool_size = 40' >"$folder/pgbouncer.ini"
        if [ "$(id -u)" -eq 0 ]; then chown -R "$(postgres_user)" "$folder"; fi
        (cd "$folder" && as_postgres "$program" -q "$folder/pgbouncer.ini") >"$folder/pgbouncer.log" 2>&1 </dev/null &
        PGBOUNCER_PID=$! PGBOUNCER_PORT=$port
        if await_ready "$PGBOUNCER_PID" "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U postern; then return 0; fi
        stop_process "$PGBOUNCER_PID"
    done
    fail "PgBouncer did not start: $(tail -n 3 "$folder/pgbouncer.log")" 69
}

# start_redis FOLDER: sets REDIS_PID and POSTERN_TEST_REDIS. Many databases, so that each test can use a separate one.
start_redis() {
    local folder=$1 port
    mkdir -p "$folder"
    for _ in 1 2 3 4 5 6 7 8; do
        port=$(any_port)
        redis-server --port "$port" --bind 127.0.0.1 --dir "$folder" --databases 8192 --save '' --appendonly no \
            --daemonize no >"$folder/redis.log" 2>&1 </dev/null &
        REDIS_PID=$!
        if await_ready "$REDIS_PID" redis_answers "$port"; then
            export POSTERN_TEST_REDIS="redis://127.0.0.1:$port"
            return 0
        fi
        stop_process "$REDIS_PID"
        REDIS_PID=
    done
    fail "Redis did not start: $(tail -n 3 "$folder/redis.log")" 69
}

redis_answers() {
    local answer
    { exec 9<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    printf 'PING\r\n' >&9
    read -r -t 2 answer <&9 || answer=
    exec 9>&-
    [ "${answer%$'\r'}" = +PONG ]
}

# await_ready PID COMMAND…: waits until COMMAND succeeds; fails if process PID has exited, or after 30 s.
await_ready() {
    local pid=$1 count
    shift
    for ((count = 0; count < 300; count++)); do
        kill -0 "$pid" 2>/dev/null || return 1
        # If the process has exited, another server on this port has answered.
        if "$@" >/dev/null 2>&1; then
            kill -0 "$pid" 2>/dev/null && return 0
            return 1
        fi
        sleep 0.1
    done
    return 1
}

# stop_process PID: sends SIGINT, waits up to 10 s, then sends SIGKILL.
stop_process() {
    local pid=$1 count
    [ -n "$pid" ] || return 0
    kill -INT "$pid" 2>/dev/null || return 0
    for ((count = 0; count < 100; count++)); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
}

stop_services() {
    stop_process "${REDIS_PID:-}"
    stop_process "${POSTGRES_PID:-}"
    REDIS_PID=
    POSTGRES_PID=
}
