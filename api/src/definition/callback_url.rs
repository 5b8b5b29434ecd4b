use crate::input::{Findings, Value};
use isocost_common::egress::EgressPolicy;
use url::{Host, Url};

/// Longest URL stored.
const MAX_LENGTH: usize = 2_048;

/// Reads a URL that webhooks may be sent to. An address that the relay would refuse is refused here already when it
/// stands in the URL; names are vetted when they are resolved.
pub(super) fn read(value: &Value<'_>, policy: &EgressPolicy, findings: &mut Findings) -> Option<String> {
    let text = value.line(1..=MAX_LENGTH, findings)?;
    match check(&text, policy) {
        Ok(()) => Some(text),
        Err((code, what)) => {
            findings.push(value.error(code, what));
            None
        }
    }
}

fn check(text: &str, policy: &EgressPolicy) -> Result<(), (&'static str, &'static str)> {
    let url = Url::parse(text).map_err(|_| {
        (
            "callback.not-a-url",
            "must be an absolute URL, such as https://example.com/hooks",
        )
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(("callback.bad-scheme", "must begin with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err((
            "callback.credentials",
            "must not carry a user name or password; receivers verify the signature instead",
        ));
    }
    if url.port() == Some(0) {
        return Err((
            "callback.bad-port",
            "must not name port 0, on which nobody listens",
        ));
    }
    let permitted = match url.host() {
        None => return Err(("callback.no-host", "must name a host")),
        Some(Host::Domain(name)) => policy.permits_name(name),
        Some(Host::Ipv4(address)) => policy.permits(address.into()),
        Some(Host::Ipv6(address)) => policy.permits(address.into()),
    };
    if permitted {
        Ok(())
    } else {
        Err((
            "callback.forbidden-address",
            "must not name a private, loopback or otherwise special address; the operator can allow networks in \
             relay.allowed_networks",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wh10_internal_addresses_are_refused_in_every_spelling() {
        let policy = EgressPolicy::new(&[], false).expect("valid");
        for host in [
            "127.0.0.1",
            "[::1]",
            "10.0.0.5",
            "169.254.169.254",
            "0.0.0.0",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
        ] {
            let refused = check(&format!("http://{host}/hook"), &policy).expect_err(host);
            assert_eq!(refused.0, "callback.forbidden-address", "{host}");
        }
        assert_eq!(check("https://example.com/hook", &policy), Ok(()));
        assert_eq!(check("http://93.184.216.34/", &policy), Ok(()));
    }

    #[test]
    fn port_0_is_refused() {
        let policy = EgressPolicy::new(&[], false).expect("valid");
        let refused = check("https://example.com:0/hook", &policy).expect_err("port 0");
        assert_eq!(refused.0, "callback.bad-port");
    }

    #[test]
    fn loopback_is_accepted_where_it_is_allowed() {
        let policy = EgressPolicy::new(&[], true).expect("valid");
        assert_eq!(check("http://127.0.0.1:9000/", &policy), Ok(()));
        assert_eq!(check("http://localhost:9000/", &policy), Ok(()));
        assert!(check("http://10.0.0.5/", &policy).is_err());
    }
}
