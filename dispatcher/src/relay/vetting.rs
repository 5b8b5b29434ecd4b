//! Which addresses a callback may reach. The check is made on the address that is dialled: inside the resolver for
//! names, before the request for addresses written into the URL. What a name resolved to is never told.

use isocost_common::config::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};
use url::{Host, Url};

/// The callback's address is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address of the callback URL is not allowed")]
pub(super) struct AddressRefused;

/// Public addresses and what the operator allows besides.
#[derive(Debug, Clone)]
pub(super) struct AddressPolicy {
    allowed: Arc<[Network]>,
}

impl AddressPolicy {
    pub(super) fn new(allowed: Vec<Network>) -> Self {
        Self {
            allowed: allowed.into(),
        }
    }

    /// True when this address may be dialled.
    pub(super) fn permits(&self, address: IpAddr) -> bool {
        is_public(address) || self.allowed.iter().any(|network| network.contains(address))
    }

    /// Checks an address written into the URL, in whatever form. A name is checked when it is resolved.
    pub(super) fn check_literal(&self, url: &Url) -> Result<(), AddressRefused> {
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) => return Ok(()),
            None => return Err(AddressRefused),
        };
        if self.permits(address) {
            Ok(())
        } else {
            Err(AddressRefused)
        }
    }
}

impl Resolve for AddressPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.clone();
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let permitted: Vec<_> = resolved.filter(|address| policy.permits(address.ip())).collect();
            if permitted.is_empty() {
                return Err(AddressRefused.into());
            }
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match a {
        // This network, private, loopback, multicast, reserved and broadcast.
        0 | 10 | 127 | 224.. => true,
        // Shared between a carrier and its customers.
        100 => (64..128).contains(&b),
        // Link-local, with the metadata service of clouds.
        169 => b == 254,
        172 => (16..32).contains(&b),
        // Private, protocol assignments, documentation, 6to4 relays.
        192 => b == 168 || (b == 0 && (c == 0 || c == 2)) || (b == 88 && c == 99),
        // Benchmarks, documentation.
        198 => b == 18 || b == 19 || (b == 51 && c == 100),
        203 => b == 0 && c == 113,
        _ => false,
    };
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(embedded) = address.to_ipv4_mapped() {
        return is_public_v4(embedded);
    }
    let [a, b, ..] = address.segments();
    // Only 2000::/3 is given out. In it, not public: protocol assignments with Teredo (2001::/23), documentation
    // (2001:db8::/32, 3fff::/20), and 6to4 (2002::/16), which hides an IPv4 address.
    let unicast = (0x2000..0x4000).contains(&a);
    let special = match a {
        0x2001 => b < 0x0200 || b == 0x0db8,
        0x2002 => true,
        0x3fff => b < 0x1000,
        _ => false,
    };
    unicast && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(allowed: &[&str], address: &str) -> bool {
        let allowed = allowed.iter().map(|n| n.parse().expect("a network")).collect();
        AddressPolicy::new(allowed).permits(address.parse().expect("an address"))
    }

    #[test]
    fn wh10_internal_addresses_and_their_disguises_are_refused() {
        for address in [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "10.0.0.5",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.9",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.170",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!permits(&[], address), "{address} was permitted");
        }
    }

    #[test]
    fn public_addresses_are_permitted() {
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "100.63.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700:4700::1111",
            "::ffff:1.1.1.1",
        ] {
            assert!(permits(&[], address), "{address} was refused");
        }
    }

    #[test]
    fn the_operator_allows_networks_and_nothing_beside_them() {
        assert!(permits(&["10.1.0.0/16"], "10.1.2.3"));
        assert!(permits(&["10.1.0.0/16"], "::ffff:10.1.2.3"));
        assert!(!permits(&["10.1.0.0/16"], "10.2.0.1"));
        assert!(permits(&["127.0.0.0/8", "::1/128"], "::1"));
    }

    #[test]
    fn an_address_in_the_url_is_checked_in_every_form() {
        let policy = AddressPolicy::new(Vec::new());
        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::1]:8080/",
            "http://0/",
        ] {
            let url = Url::parse(url).expect("a URL");
            assert_eq!(policy.check_literal(&url), Err(AddressRefused), "{url}");
        }
        let name = Url::parse("https://example.com/").expect("a URL");
        assert_eq!(policy.check_literal(&name), Ok(()));
    }

    #[tokio::test]
    async fn a_name_is_checked_when_it_is_resolved_and_the_address_is_not_told() {
        let refused = AddressPolicy::new(Vec::new())
            .resolve("localhost".parse().expect("a name"))
            .await
            .err()
            .expect("refused");
        assert!(refused.is::<AddressRefused>());
        assert!(!refused.to_string().contains("127"));
        let loopback = vec![
            "127.0.0.0/8".parse().expect("a network"),
            "::1".parse().expect("an address"),
        ];
        let resolved = AddressPolicy::new(loopback)
            .resolve("localhost".parse().expect("a name"))
            .await;
        assert!(resolved.is_ok());
    }
}
