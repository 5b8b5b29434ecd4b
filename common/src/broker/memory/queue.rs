//! One queue: its ready messages in order, who consumes it, and when something in it expires.

use super::consumer::ConsumerId;
use crate::broker::{Message, topology};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Names a queue for as long as it exists; a queue declared again after its end is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct QueueId(pub(super) u64);

/// Names a connection to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// What a message costs beside its texts: the entry, the allocations, the places in the maps.
const ENTRY_OVERHEAD: usize = 256;

/// A message with its address, shared by the queues it was routed to.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) message: Message,
}

/// Why a message left a queue undelivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeathReason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

impl DeathReason {
    /// The word RabbitMQ puts into the header.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLength => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// A message in one queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stored: Arc<Stored>,
    /// Order of arrival in the queue; a returned message goes back to it.
    position: u64,
    expires_at: Option<Instant>,
    /// How often it was handed out and came back.
    pub(super) returns: u32,
    /// Queues it died in before, to break cycles.
    pub(super) deaths: Vec<(QueueId, DeathReason)>,
}

impl Entry {
    /// Bytes it is charged with.
    pub(super) fn weight(&self) -> usize {
        let Stored {
            exchange,
            routing_key,
            message,
        } = &*self.stored;
        let headers: usize = message.headers.iter().map(|(k, v)| k.len() + v.len() + 48).sum();
        ENTRY_OVERHEAD
            + exchange.len()
            + routing_key.len()
            + message.message_id.len()
            + message.kind.len()
            + headers
            + message.body.len()
    }
}

/// A queue. The caller keeps the books of memory and of consumers.
pub(super) struct Queue {
    pub(super) definition: topology::Queue,
    /// The connection an exclusive queue belongs to.
    pub(super) owner: Option<ConnectionId>,
    /// Consumers in turn; the first is served next.
    pub(super) consumers: VecDeque<ConsumerId>,
    pub(super) exclusively_consumed: bool,
    /// When the expiry of an unused queue began to count.
    pub(super) unused_since: Instant,
    /// The earliest timer set for it.
    pub(super) armed: Option<Instant>,
    /// Ready messages by priority, each in order of position.
    lanes: Vec<VecDeque<Entry>>,
    ready: usize,
    next_position: u64,
}

impl Queue {
    pub(super) fn new(definition: topology::Queue, owner: Option<ConnectionId>, now: Instant) -> Self {
        let lanes = usize::from(definition.max_priority.unwrap_or(0)) + 1;
        Self {
            definition,
            owner,
            consumers: VecDeque::new(),
            exclusively_consumed: false,
            unused_since: now,
            armed: None,
            lanes: std::iter::repeat_with(VecDeque::new).take(lanes).collect(),
            ready: 0,
            next_position: 0,
        }
    }

    pub(super) const fn ready(&self) -> usize {
        self.ready
    }

    /// A new entry at the end of the queue, not yet in it.
    pub(super) fn entry(
        &mut self,
        stored: Arc<Stored>,
        deaths: Vec<(QueueId, DeathReason)>,
        now: Instant,
    ) -> Entry {
        let of_message = stored.message.expiration_ms.map(Duration::from_millis);
        let ttl = match (self.definition.message_ttl, of_message) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.next_position += 1;
        Entry {
            stored,
            position: self.next_position,
            // An instant too far off to be represented never comes.
            expires_at: ttl.and_then(|ttl| now.checked_add(ttl)),
            returns: 0,
            deaths,
        }
    }

    /// Puts an entry where its position says: at the end for a new one, back in its place for a returned one.
    pub(super) fn put(&mut self, entry: Entry) {
        let lane = usize::from(entry.stored.message.priority).min(self.lanes.len() - 1);
        let lane = &mut self.lanes[lane];
        if lane.back().is_none_or(|last| last.position < entry.position) {
            lane.push_back(entry);
        } else {
            let place = lane.partition_point(|other| other.position < entry.position);
            lane.insert(place, entry);
        }
        self.ready += 1;
    }

    /// Takes the message that is delivered next.
    pub(super) fn take(&mut self) -> Option<Entry> {
        let entry = self.lanes.iter_mut().rev().find_map(VecDeque::pop_front)?;
        self.ready -= 1;
        Some(entry)
    }

    /// Takes a message beyond the length limit: the next one to be delivered goes first.
    pub(super) fn take_excess(&mut self) -> Option<Entry> {
        let limit = usize::try_from(self.definition.max_length?).unwrap_or(usize::MAX);
        if self.ready > limit { self.take() } else { None }
    }

    /// Takes a message at a head whose time is over. As in RabbitMQ, one behind a longer-lived one waits for it.
    pub(super) fn take_expired(&mut self, is_over: impl Fn(Instant) -> bool) -> Option<Entry> {
        let lane = self.lanes.iter_mut().find(|lane| {
            lane.front()
                .and_then(|head| head.expires_at)
                .is_some_and(&is_over)
        })?;
        self.ready -= 1;
        lane.pop_front()
    }

    /// Takes everything.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.ready = 0;
        self.lanes.iter_mut().flat_map(|lane| lane.drain(..))
    }

    /// When the unused queue itself is over.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        if self.consumers.is_empty() {
            self.unused_since.checked_add(self.definition.expires?)
        } else {
            None
        }
    }

    /// The next instant at which something in it, or it, expires.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let heads = self
            .lanes
            .iter()
            .filter_map(|lane| lane.front().and_then(|head| head.expires_at));
        heads.chain(self.ends_at()).min()
    }
}

/// True when a message that died of `reason` in queues `deaths` may not enter `queue` again: it has been there and no
/// client rejected it on the way, so it would circle for ever.
pub(super) fn would_circle(deaths: &[(QueueId, DeathReason)], queue: QueueId) -> bool {
    deaths.iter().any(|(id, _)| *id == queue)
        && deaths.iter().all(|(_, reason)| *reason != DeathReason::Rejected)
}

/// How two definitions of one queue differ, if they do.
pub(super) fn difference(existing: &topology::Queue, wanted: &topology::Queue) -> Option<String> {
    let differs = |argument: &str, existing: String, wanted: String| {
        (existing != wanted).then(|| format!("{argument} is {existing}, not {wanted}"))
    };
    macro_rules! compare {
        ($($argument:literal => $field:ident),+) => {
            [$(differs($argument, format!("{:?}", existing.$field), format!("{:?}", wanted.$field))),+]
        };
    }
    compare!(
        "x-queue-type" => kind,
        "x-expires" => expires,
        "x-message-ttl" => message_ttl,
        "x-max-priority" => max_priority,
        "x-max-length" => max_length,
        "x-delivery-limit" => delivery_limit,
        "dead letter" => dead_letter
    )
    .into_iter()
    .flatten()
    .next()
}

impl Stored {
    /// The message as it goes on to a dead-letter exchange: its own expiration is over, and the headers tell where and
    /// of what it died first.
    pub(super) fn after_death(
        &self,
        queue: &str,
        reason: DeathReason,
        exchange: String,
        routing_key: String,
    ) -> Self {
        let mut message = self.message.clone();
        message.expiration_ms = None;
        let first = [
            ("x-first-death-exchange", self.exchange.as_str()),
            ("x-first-death-queue", queue),
            ("x-first-death-reason", reason.as_str()),
        ];
        if !message.headers.contains_key(first[1].0) {
            let headers = first.map(|(name, value)| (name.to_owned(), value.to_owned()));
            message.headers.extend(headers);
        }
        Self {
            exchange,
            routing_key,
            message,
        }
    }
}
