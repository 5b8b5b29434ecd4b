//! Exchanges: which queues a routing key leads to.

use super::queue::QueueId;
use crate::broker::ExchangeKind;
use std::collections::HashMap;

/// An exchange with its bindings.
pub(super) struct Exchange {
    kind: ExchangeKind,
    /// Direct: by routing key. Topic: by pattern. Fanout: everything under one empty key.
    bindings: HashMap<String, Vec<QueueId>>,
}

impl Exchange {
    pub(super) fn new(kind: ExchangeKind) -> Self {
        Self {
            kind,
            bindings: HashMap::new(),
        }
    }

    pub(super) const fn kind(&self) -> ExchangeKind {
        self.kind
    }

    pub(super) fn bind(&mut self, routing_key: &str, queue: QueueId) {
        let key = match self.kind {
            ExchangeKind::Fanout => "",
            ExchangeKind::Direct | ExchangeKind::Topic => routing_key,
        };
        let bound = self.bindings.entry(key.to_owned()).or_default();
        if !bound.contains(&queue) {
            bound.push(queue);
        }
    }

    pub(super) fn unbind_everywhere(&mut self, queue: QueueId) {
        self.bindings.retain(|_, bound| {
            bound.retain(|id| *id != queue);
            !bound.is_empty()
        });
    }

    /// Adds the queues that `routing_key` leads to, each once.
    pub(super) fn route(&self, routing_key: &str, targets: &mut Vec<QueueId>) {
        match self.kind {
            ExchangeKind::Fanout => targets.extend(self.bindings.get("").into_iter().flatten()),
            ExchangeKind::Direct => targets.extend(self.bindings.get(routing_key).into_iter().flatten()),
            ExchangeKind::Topic => {
                for (pattern, bound) in &self.bindings {
                    if topic_matches(pattern, routing_key) {
                        targets.extend(bound);
                    }
                }
                targets.sort_unstable();
                targets.dedup();
            }
        }
    }
}

/// True when a topic pattern covers a key: `*` stands for exactly one word, `#` for any number of them.
fn topic_matches(pattern: &str, key: &str) -> bool {
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), _) => (0..=key.len()).any(|skipped| matches(rest, &key[skipped..])),
            (Some((&"*", rest)), Some((_, key))) => matches(rest, key),
            (Some((word, rest)), Some((first, key))) => word == first && matches(rest, key),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
    let pattern: Vec<_> = pattern.split('.').collect();
    let key: Vec<_> = key.split('.').collect();
    matches(&pattern, &key)
}

#[cfg(test)]
mod tests {
    use super::topic_matches;

    #[test]
    fn star_is_one_word_and_hash_is_any_number() {
        assert!(topic_matches("shop.*.succeeded", "shop.mail.succeeded"));
        assert!(!topic_matches("shop.*.succeeded", "shop.mail.big.succeeded"));
        assert!(!topic_matches("shop.*", "shop"));
        assert!(topic_matches("shop.#", "shop"));
        assert!(topic_matches("shop.#", "shop.mail.succeeded"));
        assert!(topic_matches("#.succeeded", "shop.mail.succeeded"));
        assert!(topic_matches("#", "anything.at.all"));
        assert!(topic_matches("#.mail.#", "shop.mail.failed"));
        assert!(!topic_matches("#.mail.#", "shop.http.failed"));
        assert!(!topic_matches("shop", "shop.mail"));
    }
}
