#!/usr/bin/env python3
"""Submits jobs over AMQP and prints one line of JSON for each answer.

Needs pika (Debian: python3-pika). The job belongs to the app that is named like the RabbitMQ user of --url, or to the
app of the API key in ISOCOST_KEY.

    submit.py --url amqp://billing:secret@127.0.0.1:5672/%2f --handler noop --count 3
"""
import argparse
import collections
import json
import os
import sys
import time
import uuid

import pika

WINDOW = 500  # Jobs on their way at once: sent, and not yet both confirmed and answered.
PATIENCE_S = 120  # Given up when no answer came for so long.
AGAIN_AFTER_S = 30  # What has no answer is sent again when none came for so long.
RECONNECT_AFTER_S = 1


def main():
    arguments = read_arguments()
    producer = Producer(arguments)
    said = None
    while not producer.is_done() and producer.silence_s() < PATIENCE_S:
        why = producer.run_connection()
        if not producer.connected:
            sys.exit(f"cannot connect: {why!r}")  # A wrong address or password does not get better.
        if not producer.is_done():
            if repr(why) != said:
                said = repr(why)
                print(f"{len(producer.pending)} have no answer yet and are sent again: {said}", file=sys.stderr)
            time.sleep(RECONNECT_AFTER_S)
    if producer.pending or producer.refused:
        sys.exit(f"{len(producer.pending)} without an answer, {producer.refused} refused")


class Producer:
    """What is to be submitted. The confirms of the broker and the answers of the scheduler come in as events, so that
    nothing waits for a single one of them."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.parameters = pika.URLParameters(arguments.url)
        # One id a job, kept until the answer is here: whatever is sent twice under it is one job.
        self.pending = {f"{arguments.prefix}-{number}": job(arguments, number) for number in range(arguments.count)}
        self.refused = 0
        self.last_answer = time.monotonic()
        self.connected = False

    def is_done(self):
        return not self.pending

    def silence_s(self):
        return time.monotonic() - self.last_answer

    def run_connection(self):
        """Sends everything that has no answer, until all have one or the connection ends; says why it ended."""
        self.unsent = collections.deque(self.pending)
        self.unconfirmed = {}  # Id by delivery tag.
        self.unanswered = set()
        self.sent = 0
        self.why = "done"
        self.opened = time.monotonic()
        self.connection = pika.SelectConnection(
            self.parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.on_channel),
            on_open_error_callback=self.on_end,
            on_close_callback=self.on_end,
        )
        self.connection.ioloop.start()
        return self.why

    def on_channel(self, channel):
        self.connected = True
        self.channel = channel
        channel.add_on_close_callback(lambda _, why: self.close(why))
        channel.add_on_return_callback(self.on_return)
        channel.confirm_delivery(self.on_confirm)
        # Gone with the connection; answers to what is sent again go to the next one.
        channel.queue_declare("", exclusive=True, callback=self.on_reply_queue)

    def on_reply_queue(self, frame):
        self.replies = frame.method.queue
        self.channel.basic_consume(self.replies, self.on_answer, auto_ack=True)
        self.connection.ioloop.call_later(1, self.look)
        self.send()

    def send(self):
        while self.channel.is_open and self.unsent and len(self.unanswered) < WINDOW and len(self.unconfirmed) < WINDOW:
            message_id = self.unsent.popleft()
            self.sent += 1  # The broker counts the same way, from one.
            self.unconfirmed[self.sent] = message_id
            self.unanswered.add(message_id)
            publish(self.channel, self.arguments, message_id, self.pending[message_id], self.replies, self.user())

    def user(self):
        return self.parameters.credentials.username

    def on_confirm(self, frame):
        confirm = frame.method
        up_to = self.sent if confirm.delivery_tag == 0 else confirm.delivery_tag
        tags = [tag for tag in self.unconfirmed if tag <= up_to] if confirm.multiple else [confirm.delivery_tag]
        for tag in tags:
            message_id = self.unconfirmed.pop(tag, None)
            if isinstance(confirm, pika.spec.Basic.Nack) and message_id in self.pending:
                self.unanswered.discard(message_id)
                self.unsent.append(message_id)
        self.send()

    def on_return(self, _channel, method, properties, _body):
        sys.exit(f"{properties.message_id}: {method.reply_text}; does the scheduler use another namespace?")

    def on_answer(self, _channel, _method, properties, body):
        self.last_answer = time.monotonic()
        self.unanswered.discard(properties.correlation_id)
        if self.pending.pop(properties.correlation_id, None) is not None:  # Else answered before.
            status = int(properties.headers["x-isocost-status"])
            self.refused += status not in (200, 202)
            line = {"id": properties.correlation_id, "status": status, "answer": json.loads(body)}
            print(json.dumps(line), flush=True)
        if self.is_done():
            self.close("done")
        else:
            self.send()

    def look(self):
        if min(self.silence_s(), time.monotonic() - self.opened) > AGAIN_AFTER_S:
            self.close(f"no answer for {AGAIN_AFTER_S} s")
        else:
            self.connection.ioloop.call_later(1, self.look)

    def close(self, why):
        if self.connection.is_open:
            self.why = why
            self.connection.close()

    def on_end(self, _connection, why):
        if self.why == "done":
            self.why = why
        self.connection.ioloop.stop()


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
    channel.basic_publish(
        exchange=f"{arguments.namespace}.submissions",
        routing_key="",
        body=json.dumps(body).encode(),
        properties=properties,
        mandatory=True,  # Comes back when there is no such queue, instead of vanishing.
    )


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
