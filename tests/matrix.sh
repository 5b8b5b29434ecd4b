#!/usr/bin/env bash
# The contract suites, and the end-to-end tests of clusters, on old and new versions of every service: ./test matrix calls
# this with the shell functions of ./test at hand.
#
# The old ones are Debian stable's, as everywhere else. The new ones come from Debian unstable, in a folder that is made
# once with debootstrap; its servers are started with chroot, on loopback, with their data in that folder's /tmp.

# The end-to-end tests that start servers of their own.
readonly CLUSTER_TESTS=(cluster crash_points)

# Runs every suite on the services of this system, then on those of the other one; or on `old` or `new` ones alone.
run_matrix() {
    local which=${1:-all}
    [[ $which == @(all|old|new) ]] || die "./test matrix takes \`old\` or \`new\`, not \`$which\`"
    use_program
    use_pika
    [[ $which == new ]] || run_on_this_system
    [[ $which == old ]] || run_on_newer_system
}

run_on_this_system() {
    echo "-- MariaDB, Redis and RabbitMQ of this system"
    use_services_of_this_system
    run_suites
    unset ISOCOST_TEST_MYSQL_URL ISOCOST_TEST_REDIS_URL ISOCOST_TEST_AMQP_URL
}

run_on_newer_system() {
    local sid
    sid="$(newer_system)" || die 'no newer system for the matrix'
    echo "-- MySQL, Redis and RabbitMQ of Debian unstable"
    use_mysql_of "$sid"
    use_redis_of "$sid"
    use_rabbitmq_of "$sid"
    # Tests that need a server of their own take it from there as well.
    export ISOCOST_TEST_CHROOT="$sid"
    run_suites
    unset ISOCOST_TEST_CHROOT
}

use_services_of_this_system() {
    use_mariadb
    use_redis
    use_rabbitmq
}

run_suites() {
    run_tests --workspace --exclude isocost-tests --
    run_tests --package isocost-tests --test e2e -- --test-threads 1 "${CLUSTER_TESTS[@]/%/::}"
}

# Prints the folder with Debian unstable; makes it when it is not there.
newer_system() {
    local cache="${XDG_CACHE_HOME:-$HOME/.cache}/isocost-test" mirror
    local folder="$cache/sid"
    if [[ ! -e $folder/.complete ]]; then
        ((EUID == 0)) || { echo 'the matrix needs root, for debootstrap and chroot' >&2; return 1; }
        need debootstrap debootstrap >&2
        mirror="$(apt_mirror)"
        rm -rf "$folder"
        mkdir -p "$folder"
        echo "making a Debian unstable in $folder" >&2
        debootstrap --variant=minbase sid "$folder" "$mirror" >&2 || return 1
        # Erlang looks its own host up.
        echo '127.0.0.1 localhost' >"$folder/etc/hosts"
        # Whatever a package would start stays off.
        printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
        chmod +x "$folder/usr/sbin/policy-rc.d"
        chroot "$folder" env DEBIAN_FRONTEND=noninteractive apt-get --quiet install --yes \
            --no-install-recommends mysql-server-core redis-tools rabbitmq-server >&2 || return 1
        touch "$folder/.complete"
    fi
    echo "$folder"
}

# The mirror that this system takes its packages from.
apt_mirror() {
    local mirror
    mirror="$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null |
        grep -v -e security -e '^$' | sort -u | head -n 1)"
    echo "${mirror:-http://deb.debian.org/debian}"
}

# in_other SYSTEM COMMAND...: our folder for temporary files is not there. (In the background it would be a shell of its own,
# with the server as its child: there the command stands by itself.)
in_other() { env -u TMPDIR chroot "$@"; }

# start_in_other SYSTEM NAME READY COMMAND...: starts a server of the other system; its folder is /tmp/NAME there.
start_in_other() {
    local system=$1 name=$2 ready=$3
    shift 3
    env -u TMPDIR chroot "$system" "$@" >"$scratch/$name.log" 2>&1 </dev/null &
    started+=($!)
    says "$scratch/$name.log" "$ready" $!
}

# A folder of ours in the other system's /tmp, as seen there; it goes away at the end.
folder_in_other() {
    local folder
    folder="$(mktemp -d "$1/tmp/isocost-test.XXXXXX")"
    echo "/tmp/${folder##*/}"
}

use_mysql_of() {
    local system=$1 folder password port
    folder="$(folder_in_other "$system")"
    others+=("$system$folder")
    password="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
    mkdir "$system$folder/tmp"
    in_other "$system" mysqld --no-defaults --initialize-insecure --user=root --datadir="$folder/data" \
        >"$scratch/mysql-install.log" 2>&1 || die "mysqld cannot be set up: $(tail -n 5 "$scratch/mysql-install.log")"
    cat >"$system$folder/users.sql" <<SQL
create user isocost@'127.0.0.1' identified by '$password';
grant all on *.* to isocost@'127.0.0.1';
SQL
    port="$(free_port)"
    start_in_other "$system" mysql 'ready for connections' mysqld --no-defaults --user=root \
        --datadir="$folder/data" --tmpdir="$folder/tmp" --socket="$folder/socket" --pid-file="$folder/pid" \
        --secure-file-priv= --bind-address=127.0.0.1 --port="$port" --mysqlx=OFF --skip-name-resolve \
        --init-file="$folder/users.sql" --max-connections=500 --innodb-buffer-pool-size=256M \
        --innodb-flush-log-at-trx-commit=2 --skip-log-bin ||
        die "MySQL does not start: $(tail -n 5 "$scratch/mysql.log")"
    export ISOCOST_TEST_MYSQL_URL="mysql://isocost:$password@127.0.0.1:$port/"
    echo "$(in_other "$system" mysqld --version | sed 's/ for .*//') answers on port $port"
}

use_redis_of() {
    local system=$1 folder password port
    folder="$(folder_in_other "$system")"
    others+=("$system$folder")
    password="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
    port="$(free_port)"
    printf 'port %s\nbind 127.0.0.1\nrequirepass %s\nsave ""\nappendonly no\ndir %s\n' \
        "$port" "$password" "$folder" >"$system$folder/redis.conf"
    start_in_other "$system" redis-new 'Ready to accept connections' \
        bash -c 'exec -a redis-server redis-check-rdb "$1"' - "$folder/redis.conf" ||
        die "Redis does not start: $(tail -n 5 "$scratch/redis-new.log")"
    export ISOCOST_TEST_REDIS_URL="redis://:$password@127.0.0.1:$port/"
    echo "Redis $(in_other "$system" redis-cli --version | cut -d' ' -f2) answers on port $port"
}

# As in ./test. Tests that need a node of their own take it from this system.
use_rabbitmq_of() {
    local system=$1 folder port name_port
    folder="$(folder_in_other "$system")"
    others+=("$system$folder")
    mkdir "$system$folder"/{home,data,log}
    port="$(free_port)"
    name_port="$(free_port)"
    echo '[].' >"$system$folder/plugins"
    echo "listeners.tcp.1 = 127.0.0.1:$port" >"$system$folder/rabbitmq.conf"
    env -u TMPDIR chroot "$system" epmd -address 127.0.0.1 -port "$name_port" >"$scratch/epmd-new.log" 2>&1 </dev/null &
    started+=($!)
    start_in_other "$system" rabbitmq-new 'Starting broker.*completed' \
        env RUNNING_UNDER_SYSTEMD=true HOME="$folder/home" RABBITMQ_NODENAME="isocost-$port@localhost" \
        RABBITMQ_NODE_PORT="$port" RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_DIST_PORT="$(free_port)" \
        ERL_EPMD_PORT="$name_port" ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_MNESIA_BASE="$folder/data" \
        RABBITMQ_LOG_BASE="$folder/log" RABBITMQ_PID_FILE="$folder/pid" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$folder/plugins" RABBITMQ_CONFIG_FILE="$folder/rabbitmq.conf" \
        RABBITMQ_ADVANCED_CONFIG_FILE="$folder/none.config" RABBITMQ_CONF_ENV_FILE="$folder/none.conf" \
        /usr/lib/rabbitmq/bin/rabbitmq-server ||
        die "RabbitMQ does not start: $(tail -n 5 "$scratch/rabbitmq-new.log")"
    export ISOCOST_TEST_AMQP_URL="amqp://guest:guest@127.0.0.1:$port/%2f"
    echo "RabbitMQ of Debian unstable answers on port $port"
}
