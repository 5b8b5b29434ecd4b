//! `[relay]`.

use super::{ConfigError, millis};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, str::FromStr, time::Duration};

/// `[relay]`: delivery of callbacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayConfig {
    /// Pauses before the attempts after the first, in milliseconds; their number bounds the attempts.
    /// Default 5 s, 30 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h.
    pub retry_delays_ms: Vec<u64>,
    /// One deadline over connect, TLS, request and response, in milliseconds. Default 15,000.
    pub timeout_ms: u64,
    /// A delivery ends unsuccessful at this age, in milliseconds. Default 72 h.
    pub expires_after_ms: u64,
    /// Requests at once to one endpoint (scheme, host and port). Default 4.
    pub per_endpoint: u32,
    /// Requests at once in all. Default 256.
    pub in_flight: u32,
    /// Networks that callbacks may reach although they are private, such as `10.0.0.0/8`. Default none.
    pub allowed_networks: Vec<String>,
    /// Longest pause that a `Retry-After` may ask for, in milliseconds. Default 24 h.
    pub max_retry_after_ms: u64,
}

impl Default for RelayConfig {
    fn default() -> Self {
        const SECOND: u64 = 1_000;
        const MINUTE: u64 = 60 * SECOND;
        const HOUR: u64 = 60 * MINUTE;
        Self {
            retry_delays_ms: vec![
                5 * SECOND,
                30 * SECOND,
                5 * MINUTE,
                30 * MINUTE,
                2 * HOUR,
                5 * HOUR,
                10 * HOUR,
                10 * HOUR,
            ],
            timeout_ms: 15 * SECOND,
            expires_after_ms: 72 * HOUR,
            per_endpoint: 4,
            in_flight: 256,
            allowed_networks: Vec::new(),
            max_retry_after_ms: 24 * HOUR,
        }
    }
}

impl RelayConfig {
    /// The delay tiers, each once.
    #[must_use]
    pub fn delay_tiers(&self) -> Vec<Duration> {
        let mut tiers = self.retry_delays_ms.clone();
        tiers.sort_unstable();
        tiers.dedup();
        tiers.into_iter().map(millis).collect()
    }

    /// The allowed networks, parsed.
    ///
    /// # Errors
    /// [`InvalidNetwork`] naming the first that is none.
    pub fn networks(&self) -> Result<Vec<Network>, InvalidNetwork> {
        self.allowed_networks.iter().map(|text| text.parse()).collect()
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        super::load::check(&[
            (
                self.retry_delays_ms.len() <= 50 && self.retry_delays_ms.iter().all(|ms| *ms >= 10),
                "relay.retry_delays_ms",
                "must be at most 50 numbers of at least 10",
            ),
            (
                (100..=300_000).contains(&self.timeout_ms),
                "relay.timeout_ms",
                "must be between 100 and 300000",
            ),
            (
                self.expires_after_ms >= 1_000,
                "relay.expires_after_ms",
                "must be at least 1000",
            ),
            (
                (1..=1_000).contains(&self.per_endpoint),
                "relay.per_endpoint",
                "must be between 1 and 1000",
            ),
            (
                self.networks().is_ok(),
                "relay.allowed_networks",
                "must be addresses or networks such as 10.0.0.0/8 or fd00::/8",
            ),
            (
                (1..=10_000).contains(&self.in_flight),
                "relay.in_flight",
                "must be between 1 and 10000",
            ),
        ])
    }
}

/// A network in CIDR notation. A bare address is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

/// The text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network such as 10.0.0.0/8")]
pub struct InvalidNetwork(pub String);

impl Network {
    /// True when the address lies in it. An IPv4 address in IPv6 clothes is taken for what it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same_prefix = |ours: u128, theirs: u128, bits: u32| {
            let ignored = bits.saturating_sub(self.prefix);
            ignored >= bits || (ours ^ theirs) >> ignored == 0
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same_prefix(u32::from(ours).into(), u32::from(theirs).into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same_prefix(ours.into(), theirs.into(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidNetwork(text.chars().take(64).collect());
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| invalid())?;
        if prefix > bits {
            return Err(invalid());
        }
        Ok(Self { address, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let network: Network = network.parse().expect("a network");
        network.contains(address.parse().expect("an address"))
    }

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("fd00::/8", "fd12::1"));
        assert!(!contains("fd00::/8", "fe80::1"));
        assert!(contains("0.0.0.0/0", "203.0.113.1"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(contains("192.168.1.9", "192.168.1.9"));
        assert!(!contains("192.168.1.9", "192.168.1.10"));
    }

    #[test]
    fn what_is_no_network_stops_the_start() {
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "10.0.0.0/",
            "localhost",
        ] {
            let config = RelayConfig {
                allowed_networks: vec![bad.into()],
                ..RelayConfig::default()
            };
            assert!(config.validate().is_err(), "`{bad}` was accepted");
        }
    }
}
