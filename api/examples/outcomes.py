#!/usr/bin/env python3
"""Follows how executions end and prints one line of JSON for each.

Needs pika (Debian: python3-pika). The queue is durable, so nothing is missed while this program, or the broker, is down.

    outcomes.py --url amqp://billing:secret@127.0.0.1:5672/%2f --queue billing-outcomes --pattern 'billing.#'
"""
import argparse
import json
import sys
import time

import pika

RECONNECT_AFTER_S = 1


def main():
    arguments = read_arguments()
    seen = set()  # Where effects count, keep the ids in the database that the effect is in.
    bound = False
    while True:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(arguments.url))
            channel = connection.channel()
            bind(arguments, channel)
            bound = True
            follow(arguments, channel, seen)
            if is_done(arguments, seen):
                connection.close()
                return
            why = "the broker ended the consumer"
            connection.close()
        except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as error:
            if not bound:
                raise  # A wrong address, password or permission does not get better.
            why = repr(error)
        print(f"connecting again: {why}", file=sys.stderr)
        time.sleep(RECONNECT_AFTER_S)


def bind(arguments, channel):
    exchange = f"{arguments.namespace}.outcomes"
    channel.queue_declare(arguments.queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind(arguments.queue, exchange, routing_key=arguments.pattern)
    channel.basic_qos(prefetch_count=200)
    print(f"following {exchange} {arguments.pattern}", flush=True)


def follow(arguments, channel, seen):
    for method, properties, body in channel.consume(arguments.queue):
        # An outcome comes at least once; its message_id is the id of the execution, which ends once.
        if properties.message_id not in seen:
            seen.add(properties.message_id)
            outcome = json.loads(body)
            print(json.dumps({"key": method.routing_key, "type": outcome["type"], **outcome["data"]}), flush=True)
        channel.basic_ack(method.delivery_tag)  # After the effect, never before.
        if is_done(arguments, seen):
            channel.cancel()
            return


def is_done(arguments, seen):
    return len(seen) == arguments.count


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2f")
    parser.add_argument("--namespace", default="isocost", help="broker.namespace of the scheduler")
    parser.add_argument("--queue", default="example-outcomes")
    parser.add_argument("--pattern", default="#", help="<app>.<handler>.<status>, * for one word, # for any number")
    parser.add_argument("--count", type=int, default=0, help="stop after so many; 0: never")
    return parser.parse_args()


if __name__ == "__main__":
    main()
