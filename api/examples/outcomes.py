#!/usr/bin/env python3
"""Follows how executions end and prints one line of JSON for each.

Needs pika (Debian: python3-pika). The queue is durable, so nothing is missed while this program is down.

    outcomes.py --url amqp://billing:secret@127.0.0.1:5672/%2f --queue billing-outcomes --pattern 'billing.#'
"""
import argparse
import json

import pika


def main():
    arguments = read_arguments()
    connection = pika.BlockingConnection(pika.URLParameters(arguments.url))
    channel = connection.channel()
    exchange = f"{arguments.namespace}.outcomes"
    channel.queue_declare(arguments.queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind(arguments.queue, exchange, routing_key=arguments.pattern)
    channel.basic_qos(prefetch_count=200)
    print(f"following {exchange} {arguments.pattern}", flush=True)
    seen = set()  # Where effects count, keep the ids in the database that the effect is in.
    for method, properties, body in channel.consume(arguments.queue):
        # An outcome comes at least once; its message_id is the id of the execution, which ends once.
        if properties.message_id not in seen:
            seen.add(properties.message_id)
            outcome = json.loads(body)
            print(json.dumps({"key": method.routing_key, "type": outcome["type"], **outcome["data"]}), flush=True)
        channel.basic_ack(method.delivery_tag)  # After the effect, never before.
        if len(seen) == arguments.count:
            break
    channel.cancel()
    connection.close()


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
