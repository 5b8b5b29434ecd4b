#!/usr/bin/env python3
"""Submits jobs over AMQP and prints one line of JSON for each answer.

Needs pika (Debian: python3-pika). The job belongs to the app that is named like the RabbitMQ user of --url, or to the
app of the API key in ISOCOST_KEY.

    submit.py --url amqp://billing:secret@127.0.0.1:5672/%2f --handler noop --count 3
"""
import argparse
import json
import os
import sys
import time
import uuid

import pika

ANSWER_TIMEOUT_S = 10
ROUNDS = 5


def main():
    arguments = read_arguments()
    parameters = pika.URLParameters(arguments.url)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    replies = channel.queue_declare("", exclusive=True).method.queue

    # One id a job, kept until the answer is here: whatever is sent twice under it is one job.
    pending = {f"{arguments.prefix}-{number}": job(arguments, number) for number in range(arguments.count)}
    refused = 0
    for _ in range(ROUNDS):
        for message_id, body in pending.items():
            publish(channel, arguments, message_id, body, replies, parameters.credentials.username)
        for properties, answer in answers(channel, replies, len(pending)):
            if pending.pop(properties.correlation_id, None) is None:
                continue  # Answered before: this is the answer to a repetition.
            status = int(properties.headers["x-isocost-status"])
            refused += status not in (200, 202)
            print(json.dumps({"id": properties.correlation_id, "status": status, "answer": answer}), flush=True)
        if not pending:
            break
        print(f"{len(pending)} have no answer yet and are sent again", file=sys.stderr)
    connection.close()
    if pending or refused:
        sys.exit(f"{len(pending)} without an answer, {refused} refused")


def job(arguments, number):
    return {"jobName": f"{arguments.prefix} {number}", "jobHandler": arguments.handler, "params": {"number": number}}


def publish(channel, arguments, message_id, body, reply_to, user):
    headers = {}
    if os.environ.get("ISOCOST_KEY"):
        headers["authorization"] = f"Bearer {os.environ['ISOCOST_KEY']}"
    properties = pika.BasicProperties(
        content_type="application/json",
        delivery_mode=2,  # On disk, so that a restart of the broker does not lose it.
        message_id=message_id,
        correlation_id=message_id,
        reply_to=reply_to,
        user_id=user,  # The broker refuses any other name than that of the login.
        headers=headers,
    )
    # With confirm_delivery() this waits until the broker has it, and raises when it has not.
    channel.basic_publish(
        exchange=f"{arguments.namespace}.submissions",
        routing_key="",
        body=json.dumps(body).encode(),
        properties=properties,
        mandatory=True,
    )


def answers(channel, queue, count):
    """Yields at most `count` answers; ends early when none comes for a while."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=0.5):
        if method is not None:
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            count -= 1
            yield properties, json.loads(body)
        if count == 0 or time.monotonic() > deadline:
            break
    channel.cancel()


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2f")
    parser.add_argument("--namespace", default="isocost", help="broker.namespace of the scheduler")
    parser.add_argument("--handler", default="noop")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--prefix", default=f"example-{uuid.uuid4()}", help="first part of the ids")
    return parser.parse_args()


if __name__ == "__main__":
    main()
