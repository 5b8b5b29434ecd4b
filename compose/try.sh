#!/usr/bin/env bash
# Brings the compose files up for real, gives them work, breaks something, and takes everything away again.
#
# Docker and compose are installed when they are missing (Debian), and a Docker daemon of our own runs meanwhile when
# there is none. Images that cannot be fetched are made from Debian's packages: see stand-ins/.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly ROOT
cd "$ROOT"

# How many jobs each round submits, and how long anything may take.
readonly JOBS=200 PATIENCE_S=240

usage() {
    cat <<'HELP'
usage: compose/try.sh [--binary FILE]

Tries compose.yaml, compose.small.yaml and the image on its own. With --binary the image is made of that program instead
of building it. The project is called isocost-try-…, on free ports, beside whatever else runs; compose/.env stays as it is.
The last line is `N passed, N failed`; the exit status is 0 if nothing failed.
HELP
}

passed=0
failed=0
scratch=''
daemon=''      # process id of the Docker daemon that this script started
docker=''      # a client that builds with BuildKit
made_images=() # what to take away again
leader=''      # container of the dispatcher that was killed
receiver=''    # container that takes callbacks
standalone=''  # container of the image on its own
binary=''
file='' # the compose file that is tried

main() {
    while (($#)); do
        case "$1" in
            --binary) binary="$(realpath "${2:?--binary needs a file}")" && shift 2 ;;
            -h | --help) usage; return 0 ;;
            *) usage >&2; return 2 ;;
        esac
    done
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    scratch="$(mktemp -d "${TMPDIR:-/tmp}/isocost-try.XXXXXX")"
    need curl curl
    need jq jq
    need openssl openssl
    use_docker
    copy_the_tree
    make_images
    try_without_secrets
    try_cluster
    try_small
    try_standalone
    try_down
    report
}

# --- what is tried --------------------------------------------------------------------------------------------------

try_without_secrets() {
    local said
    said="$(env -u MYSQL_ROOT_PASSWORD "${compose[@]}" -f compose/compose.yaml config 2>&1 >/dev/null || true)"
    check 'without passwords nothing starts, and the remedy is named' [ "${said/run compose\/secrets.sh/}" != "$said" ]
    compose/secrets.sh
    local before
    before="$(cat compose/.env)"
    compose/secrets.sh
    check 'passwords are made once, for the owner only' \
        [ "$before $(stat --format=%a compose/.env)" == "$(cat compose/.env) 600" ]
}

try_cluster() {
    file=compose/compose.yaml
    say 'compose.yaml comes up'
    bring_up
    check 'every container is healthy' eventually all_healthy 11
    key="$(in_compose run --rm admin-key 2>/dev/null)"
    check 'the admin key works' get /openapi/workers '.items | length == 2'
    check 'doctor finds no problem' in_compose exec -T dispatcher isocost doctor
    check 'the page of RabbitMQ answers' curl --silent --fail --output /dev/null "http://127.0.0.1:$rabbitmq_port/"
    check 'Prometheus reaches every role' eventually all_targets_up
    make_secret
    start_receiver

    say "$JOBS jobs with callbacks"
    submit first 50
    check 'all succeed' eventually all_succeeded first
    check 'both workers ran some' shares_of_workers first
    check 'every callback arrived' eventually called_back "$JOBS"
    check 'each is signed' all_signed

    say "$JOBS jobs while a worker is restarted, and as many when the leader has been killed"
    submit second 2000
    local workers
    workers="$(in_compose ps --quiet worker)"
    "$docker" restart --time 45 "${workers%%$'\n'*}" >/dev/null &
    local restarting=$!
    kill_leader
    submit third 50
    check 'the worker is back' wait "$restarting"
    check 'all succeed' eventually all_succeeded second
    check 'also those without a leader' eventually all_succeeded third
    check 'each at its first attempt' at_first_attempt second
    check 'every callback arrived' eventually called_back $((3 * JOBS))
    check 'every container is healthy again' eventually all_healthy 11
    check 'the daemon has started the killed leader again' was_restarted "$leader"
    check 'Prometheus reaches every role again' eventually all_targets_up
    remove_receiver
    check 'all stop' in_compose down
}

try_small() {
    file=compose/compose.small.yaml
    say 'compose.small.yaml goes on with the data of compose.yaml'
    bring_up
    check 'every container is healthy' eventually all_healthy 5
    check 'the jobs of before are there' all_succeeded second
    start_receiver
    submit fourth 50
    check 'all succeed' eventually all_succeeded fourth
    check 'every callback arrived' eventually called_back "$JOBS"
    remove_receiver
}

try_standalone() {
    say 'the image on its own'
    standalone="$("$docker" run --detach --network none --volume "$project-alone:/var/lib/isocost" "$ISOCOST_IMAGE")"
    check 'it is healthy' eventually is_healthy "$standalone"
    check 'it runs a job' standalone_runs_a_job
    check 'it stops within ten seconds' stops_by_itself "$standalone"
}

standalone_runs_a_job() {
    "$docker" exec "$standalone" bash -c '
        key="$(cat /var/lib/isocost/admin.key)"
        job="$(isocost job submit --key "$key" --name try --handler echo --params 1 --json)"
        [[ $job =~ \"jobId\":\ *\"([^\"]+)\" ]] && isocost job wait --key "$key" "${BASH_REMATCH[1]}"' >/dev/null
}

stops_by_itself() {
    "$docker" stop --time 10 "$1" >/dev/null
    [[ $("$docker" inspect --format '{{.State.ExitCode}}' "$1") == 0 ]]
}

try_down() {
    say 'everything goes'
    check 'all stop' in_compose down
    # This file names all volumes.
    file=compose/compose.yaml
    check 'all volumes go' in_compose down --volumes
    check 'no container is left' [ -z "$(project_has ps --all)" ]
    check 'no volume is left' [ -z "$(project_has volume ls)" ]
}

project_has() { "$docker" "$@" --quiet --filter "label=com.docker.compose.project=$project"; }

# --- jobs and callbacks ---------------------------------------------------------------------------------------------

# submit ROUND MS: jobs that sleep so long, each with a callback. Their ids go into a file.
submit() {
    jq --null-input --arg round "$1" --argjson ms "$2" --argjson count "$JOBS" '[range($count) | {
        clientRequestId: "\($round)-\(.)", jobName: "try \($round)", jobHandler: "sleep", params: {ms: $ms},
        retry: {maxAttempts: 3}, callbackUrl: "http://receiver:8000/\($round)"}]' |
        call /openapi/jobs/batch --data @- >"$scratch/answer.json"
    jq '{jobIds: [.results[] | select(.status == 202).job.jobId]}' "$scratch/answer.json" >"$scratch/$1.json"
    check "$JOBS are accepted" [ "$(jq '.jobIds | length' "$scratch/$1.json")" == "$JOBS" ]
}

all_succeeded() {
    call /openapi/jobs/status --data "@$scratch/$1.json" |
        jq --exit-status --argjson count "$JOBS" '[.items[] | select(.status == "SUCCESS")] | length == $count' >/dev/null
}

# The executions of a round.
executions() {
    call '/openapi/executions?pageSize=500' |
        jq --slurpfile round "$scratch/$1.json" '[.items[] | select(.jobId | IN($round[0].jobIds[]))]'
}

# No less than a third each: the jobs are equal, and so are the workers.
shares_of_workers() {
    local shares
    shares="$(executions "$1" | jq --compact-output 'group_by(.workerId) | map(length)')"
    echo "shares of the workers: $shares"
    jq --exit-status --argjson count "$JOBS" 'length == 2 and min * 3 >= $count' <<<"$shares" >/dev/null
}

# Nobody's attempt failed or was lost. What had been sent to the worker that went is sent again, which counts as an
# interruption.
at_first_attempt() {
    local others
    others="$(executions "$1" | jq --raw-output '.[] | select(.attempt - .interruptions != 1).executionId')"
    [[ -n $others ]] || return 0
    call "/openapi/executions/$(head -n 1 <<<"$others")" | jq .
    echo "$(wc -l <<<"$others") executions needed more than one attempt; the first is shown"
    return 1
}

# For the first app.
make_secret() {
    local app
    app="$(call /openapi/apps | jq --raw-output '.items[0].appId')"
    secret="$(call "/openapi/apps/$app/webhook-secrets" --request POST | jq --raw-output .secret)"
}

# A neighbour that prints what is posted to it.
start_receiver() {
    receiver="$("$docker" run --detach --network "${project}_default" --network-alias receiver \
        --volume "$PWD/compose/stand-ins/receiver:/receiver:ro" debian:bookworm-slim perl /receiver/receiver.pl)"
}

# called_back COUNT: so many deliveries arrived. What arrived twice counts once.
called_back() {
    "$docker" logs "$receiver" 2>/dev/null | sort --unique --key=1,1 >"$scratch/callbacks"
    [[ $(wc -l <"$scratch/callbacks") == "$1" ]]
}

# With our secret, every one that has arrived.
all_signed() {
    local id at signatures body hex
    hex="$(base64 --decode <<<"${secret#whsec_}" | od -An -v -tx1 | tr -d ' \n')"
    while read -r id at signatures body; do
        [[ " $(unhex "$signatures") " == *" v1,$({
            printf '%s.%s.' "$id" "$at"
            unhex "$body"
        } | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$hex" -binary | base64) "* ]] || {
            echo "the signature of $id is not ours"
            return 1
        }
    done <"$scratch/callbacks"
}

unhex() { printf '%b' "$(sed 's/../\\x&/g' <<<"$1")"; }

call() {
    local path=$1
    shift
    curl --silent --show-error --fail-with-body --max-time 20 --header "Authorization: Bearer $key" \
        --header 'Content-Type: application/json' "$@" "http://127.0.0.1:$api_port$path"
}

# get PATH CONDITION: whether the answer fulfils it.
get() { call "$1" | jq --exit-status "$2" >/dev/null; }

# --- containers -----------------------------------------------------------------------------------------------------

# A service that another one waits for may fail: then nothing else is worth a try.
bring_up() { in_compose up --detach --no-build >"$scratch/up.log" 2>&1 || die 'it does not come up'; }

in_compose() { "${compose[@]}" -f "$file" "$@"; }

# all_healthy COUNT: so many containers, every one healthy, or ended as it should.
all_healthy() {
    local container count=0
    for container in $(project_has ps --all); do
        is_healthy "$container" || return 1
        count=$((count + 1))
    done
    ((count == $1))
}

is_healthy() {
    case "$("$docker" inspect --format \
        '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.ExitCode}}{{end}}' "$1")" in
        'running healthy' | 'exited 0') return 0 ;;
        *) return 1 ;;
    esac
}

# Every container of a role, and RabbitMQ.
all_targets_up() {
    curl --silent --fail "http://127.0.0.1:$prometheus_port/api/v1/targets?state=active" | jq --exit-status '
        [.data.activeTargets[] | select(.health == "up").labels.job] | sort ==
        ["api", "dispatcher", "dispatcher", "rabbitmq", "relay", "worker", "worker"]' >/dev/null
}

# Kills the dispatcher that leads and remembers its container. From outside, as a crash would: the daemon starts it again.
kill_leader() {
    local container
    for container in $(in_compose ps --quiet dispatcher); do
        "$docker" exec "$container" bash -c 'exec 3<>/dev/tcp/127.0.0.1/9100
            printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3
            grep -q "^isocost_leader 1$" <&3' || continue
        leader="$container"
        kill -KILL "$("$docker" inspect --format '{{.State.Pid}}' "$container")"
        return
    done
    die 'no dispatcher leads'
}

was_restarted() { (($("$docker" inspect --format '{{.RestartCount}}' "$1") > 0)); }

remove_receiver() {
    "$docker" rm --force "$receiver" >/dev/null
    receiver=''
}

# --- Docker ---------------------------------------------------------------------------------------------------------

use_docker() {
    need dockerd docker.io
    docker="$(client_with_buildkit)" || die 'no docker client here builds with BuildKit: install docker-buildx'
    export DOCKER_BUILDKIT=1
    if "$docker" compose version >/dev/null 2>&1; then
        compose=("$docker" compose)
    else
        need docker-compose docker-compose
        compose=(docker-compose)
    fi
    "$docker" version >/dev/null 2>&1 || start_daemon
}

client_with_buildkit() {
    local client
    for client in $(type -ap docker); do
        if DOCKER_BUILDKIT=1 "$client" build --help 2>/dev/null | grep -- --secret >/dev/null; then
            echo "$client"
            return
        fi
    done
    return 1
}

# Builds use the network of the host, so it needs no bridge of its own. Its firewall rules let containers reach each other
# also where an earlier daemon has left the host closed; they go when it goes.
start_daemon() {
    ((EUID == 0)) || die 'no Docker daemon runs, and only root can start one'
    local deadline=$((SECONDS + 60))
    iptables-save >"$scratch/firewall"
    export DOCKER_HOST="unix://$scratch/docker.sock"
    dockerd --host "$DOCKER_HOST" --data-root "$scratch/docker" --exec-root "$scratch/docker-run" \
        --pidfile "$scratch/docker.pid" --bridge none --ip-forward=false \
        >"$scratch/dockerd.log" 2>&1 </dev/null &
    daemon=$!
    until "$docker" version >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null && ((SECONDS < deadline)) ||
            die "the Docker daemon does not start: $(tail -n 5 "$scratch/dockerd.log")"
        sleep 0.2
    done
    echo "a Docker daemon of our own runs"
}

# --- images ---------------------------------------------------------------------------------------------------------

# What git would commit, so that no password and no build folder of this checkout takes part.
copy_the_tree() {
    mkdir "$scratch/isocost"
    git ls-files -z --cached --others --exclude-standard |
        tar --create --null --files-from=- --ignore-failed-read 2>/dev/null | tar --extract --directory "$scratch/isocost"
    cd "$scratch/isocost"
    project="isocost-try-$$"
    api_port="$(free_port)" rabbitmq_port="$(free_port)" prometheus_port="$(free_port)"
    export COMPOSE_PROJECT_NAME="$project" ISOCOST_IMAGE="$project:local" ISOCOST_API_ADDRESS="127.0.0.1:$api_port"
    export RABBITMQ_MANAGEMENT_PORT="$rabbitmq_port" PROMETHEUS_PORT="$prometheus_port"
    # The receiver of callbacks is a neighbour.
    export ISOCOST_CALLBACK_NETWORKS='["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]'
}

make_images() {
    local image service
    have_image debian:bookworm-slim || import_debian bookworm debian:bookworm-slim
    # The names stand in the compose file only.
    for service in mysql rabbitmq redis prometheus; do
        image="$(sed -n "/^  $service:/,/^\$/s/^    image: //p" compose/compose.yaml)"
        have_image "$image" || stand_in "$image" "compose/stand-ins/$service"
    done
    local from=()
    if [[ -n $binary ]]; then
        mkdir "$scratch/program"
        cp "$binary" "$scratch/program/isocost"
        build "$project-program" --file - "$scratch/program" <<<$'FROM scratch\nCOPY isocost /isocost'
        from=(--build-arg "PROGRAM=$project-program")
    else
        image="$(sed -n 's/^FROM \(rust:[^ ]*\) .*/\1/p' compose/Dockerfile)"
        have_image "$image" || import_rust "$image"
    fi
    build "$ISOCOST_IMAGE" --file compose/Dockerfile "${from[@]}" .
}

# Here already, or to be fetched.
have_image() {
    "$docker" image inspect "$1" >/dev/null 2>&1 && return
    timeout 600 "$docker" pull --quiet "$1" >/dev/null 2>&1 || return
    made_images+=("$1")
}

# build IMAGE ARGUMENT...
build() {
    local image=$1 from=$SECONDS
    shift
    "$docker" build --network host --tag "$image" "$@" >"$scratch/build.log" 2>&1 ||
        die "$image cannot be built: $(tail -n 40 "$scratch/build.log")"
    made_images+=("$image")
    echo "$image is built ($((SECONDS - from)) s)"
}

stand_in() {
    "$docker" image inspect isocost-try/sid >/dev/null 2>&1 || import_debian sid isocost-try/sid
    build "$1" "$2"
}

# import_debian SUITE IMAGE: from where this machine takes its own packages, with its rules on how fresh lists must be.
import_debian() {
    ((EUID == 0)) || die "$2 cannot be fetched, and only root can make one"
    need debootstrap debootstrap
    local root="$scratch/$1" mirror from=$SECONDS
    mirror="$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && !found++ { print $2 }')"
    debootstrap --variant=minbase "$1" "$root" "$mirror" >"$scratch/debootstrap.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 5 "$scratch/debootstrap.log")"
    apt-config dump | grep -E '^Acquire::(Check-|[a-z]+::Proxy)' >"$root/etc/apt/apt.conf.d/90machine" || true
    # Packages must not start their services.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
    tar --create --directory "$root" --exclude './var/cache/apt/archives/*.deb' --exclude './var/lib/apt/lists/*' . |
        "$docker" import - "$2" >/dev/null
    rm -rf --one-file-system "$root"
    made_images+=("$2")
    echo "$2 is made ($((SECONDS - from)) s)"
}

# The toolchain, the certificates and the settings of cargo of this machine.
import_rust() {
    local sysroot context="$scratch/rust" version
    find_cargo
    version="$(sed 's/^rust:\([0-9.]*\)-.*/\1/' <<<"$1")"
    [[ $(rustc --version) == "rustc $version."* ]] || die "$1 cannot be fetched, and Rust here is no $version"
    sysroot="$(rustc --print sysroot)"
    mkdir "$context"
    cp /etc/ssl/certs/ca-certificates.crt "$context/"
    cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$context/" 2>/dev/null || touch "$context/config.toml"
    cat >"$context/Dockerfile" <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev && \
    rm -rf /var/lib/apt/lists/*
ENV CARGO_HOME=/usr/local/cargo
COPY toolchain /usr/local
COPY ca-certificates.crt /etc/ssl/certs/
COPY config.toml /usr/local/cargo/
DOCKERFILE
    tar --create --directory "$context" . --directory "$sysroot" --transform 's,^\(bin\|lib\)/,toolchain/\1/,' \
        --exclude 'lib/rustlib/wasm*' --exclude lib/rustlib/src bin lib >"$scratch/rust.tar"
    build "$1" - <"$scratch/rust.tar"
    rm "$scratch/rust.tar"
}

find_cargo() {
    if ! command -v cargo >/dev/null && [[ -r $HOME/.cargo/env ]]; then
        # shellcheck source=/dev/null
        source "$HOME/.cargo/env"
    fi
    command -v cargo >/dev/null || die 'cargo is not installed: see https://rustup.rs'
}

# --- the rest -------------------------------------------------------------------------------------------------------

say() { echo "== $*"; }

# check WHAT COMMAND...
check() {
    local what=$1 from=$SECONDS
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok      $what ($((SECONDS - from)) s)"
    else
        failed=$((failed + 1))
        echo "FAILED  $what ($((SECONDS - from)) s)"
    fi
}

# eventually COMMAND...: until it succeeds, or the patience is over.
eventually() {
    local deadline=$((SECONDS + PATIENCE_S))
    until "$@" 2>/dev/null; do
        ((SECONDS < deadline)) || return 1
        sleep 0.5
    done
}

free_port() {
    local port
    while true; do
        port=$((RANDOM % 12000 + 20000))
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# need PROGRAM PACKAGE: installs the Debian package unless the program is there.
need() {
    PATH="$PATH:/usr/sbin:/sbin"
    ! command -v "$1" >/dev/null || return 0
    command -v apt-get >/dev/null && ((EUID == 0)) || die "$1 is missing (Debian: $2)"
    echo "installing $2"
    export DEBIAN_FRONTEND=noninteractive
    apt-get --quiet update >/dev/null
    apt-get --quiet install --yes --no-install-recommends "$2" >/dev/null || die "$2 cannot be installed"
}

report() {
    if ((failed)) && [[ -n $file ]]; then
        if [[ -r $scratch/up.log ]]; then tail -n 20 "$scratch/up.log"; fi
        in_compose ps || true
        in_compose logs --no-color --tail 15 || true
    fi
    echo "$passed passed, $failed failed"
    ((failed == 0))
}

die() {
    echo "error: $*" >&2
    failed=$((failed + 1))
    report || exit 1
}

clean_up() {
    local status=$? image
    trap - EXIT
    set +e
    if [[ -n $receiver ]]; then remove_receiver; fi
    if [[ -n $standalone ]]; then
        "$docker" rm --force "$standalone" >/dev/null
        "$docker" volume rm "$project-alone" >/dev/null
    fi
    if [[ -n $file ]]; then in_compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1; fi
    # Last made, first removed.
    for ((i = ${#made_images[@]} - 1; i >= 0; i--)); do "$docker" image rm "${made_images[i]}" >/dev/null; done
    if [[ -n $daemon ]]; then
        kill "$daemon"
        wait "$daemon"
        iptables-restore <"$scratch/firewall"
        # The daemon leaves the network of the host mounted here when a container has used it.
        umount "$scratch"/docker-run/netns/* 2>/dev/null
    fi
    if [[ -n $scratch ]]; then rm -rf --one-file-system "$scratch"; fi
    exit "$status"
}

# On one line: bash reads on in this file only after the command, and somebody may have changed it meanwhile.
main "$@"; exit
