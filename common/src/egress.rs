//! Which addresses callbacks may go to. One rule for the API, which sees addresses in URLs, and for the relay, which
//! sees the ones that names resolve to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network such as 10.0.0.0/8 or fd00::/8")]
pub struct InvalidNetwork(pub String);

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    fn parse(text: &str) -> Result<Self, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.chars().take(64).collect());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(bits);
        if prefix > bits {
            return Err(invalid());
        }
        Ok(Self { address, prefix })
    }

    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
                (network.to_bits() & mask) == (address.to_bits() & mask)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - self.prefix).unwrap_or(0);
                (network.to_bits() & mask) == (address.to_bits() & mask)
            }
            _ => false,
        }
    }
}

/// Public addresses, and what the operator allows besides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressPolicy {
    allowed: Vec<Network>,
    allow_loopback: bool,
}

impl EgressPolicy {
    /// A policy that also allows these networks, and loopback if told so.
    ///
    /// # Errors
    /// [`InvalidNetwork`] naming the text that is none.
    pub fn new(allowed_networks: &[String], allow_loopback: bool) -> Result<Self, InvalidNetwork> {
        let allowed: Result<_, _> = allowed_networks.iter().map(|text| Network::parse(text)).collect();
        Ok(Self {
            allowed: allowed?,
            allow_loopback,
        })
    }

    /// True when callbacks may be sent to this address. IPv6 forms that carry an IPv4 address count as that address.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = unwrap_v4(address);
        if self.allowed.iter().any(|network| network.contains(address)) {
            return true;
        }
        match address {
            IpAddr::V4(v4) => (self.allow_loopback && v4.is_loopback()) || is_public_v4(v4),
            IpAddr::V6(v6) => (self.allow_loopback && v6.is_loopback()) || is_public_v6(v6),
        }
    }

    /// False for names that always mean this machine, unless loopback is allowed. What other names resolve to has to
    /// be asked of [`EgressPolicy::permits`].
    #[must_use]
    pub fn permits_name(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.allow_loopback || !(host == "localhost" || host.ends_with(".localhost"))
    }
}

/// IPv4-mapped, IPv4-compatible, NAT64 and 6to4 addresses lead to the IPv4 address inside.
fn unwrap_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let segments = v6.segments();
    let inner = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => inner(high, low),
        _ => address,
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_unspecified()
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    // Global unicast is 2000::/3; of it, documentation, Teredo and other special assignments are left out.
    (first & 0xe000) == 0x2000
        && !(first == 0x2001 && second < 0x0200)
        && !(first == 0x2001 && second == 0x0db8)
        && first != 0x3fff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(policy: &EgressPolicy, address: &str) -> bool {
        policy.permits(address.parse().expect("an address"))
    }

    #[test]
    fn only_public_addresses_are_permitted_by_default() {
        let policy = EgressPolicy::default();
        for address in ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(permits(&policy, address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.168.1.9",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!permits(&policy, address), "{address}");
        }
    }

    #[test]
    fn a_network_is_permitted_when_the_operator_lists_it() {
        let policy = EgressPolicy::new(
            &["10.0.0.0/8".into(), "fd00::/8".into(), "192.168.1.9".into()],
            false,
        )
        .expect("valid");
        assert!(permits(&policy, "10.255.0.1"));
        assert!(permits(&policy, "::ffff:10.0.0.1"));
        assert!(permits(&policy, "fd12::1"));
        assert!(permits(&policy, "192.168.1.9"));
        assert!(!permits(&policy, "192.168.1.10"));
        assert!(!permits(&policy, "127.0.0.1"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["10.0.0.0/33", "10.0.0/8", "x", "::/129", ""] {
            assert!(EgressPolicy::new(&[text.into()], false).is_err(), "{text}");
        }
    }
}
