#!/usr/bin/env bash
# Makes compose/.env with a random password for every service, once. What is there stays: the services have written
# their passwords into their volumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

main() {
    if [[ -e .env ]]; then
        echo 'compose/.env is there already and stays as it is' >&2
        return
    fi
    umask 077
    local new
    new="$(mktemp .env.XXXXXX)"
    cat >"$new" <<ENV
# Made by compose/secrets.sh. The volumes know these passwords: without this file they cannot be opened.
COMPOSE_PROJECT_NAME=isocost
MYSQL_ROOT_PASSWORD=$(random)
ISOCOST_MYSQL_PASSWORD=$(random)
ISOCOST_RABBITMQ_PASSWORD=$(random)
ISOCOST_REDIS_PASSWORD=$(random)
ENV
    # Beside the name first, so that nobody ever reads half a file.
    mv "$new" .env
    echo 'compose/.env is written' >&2
}

# 128 bits, in characters that mean nothing in a URL or a shell.
random() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

main "$@"; exit
