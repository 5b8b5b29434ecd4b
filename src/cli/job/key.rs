//! Finding the API key.

use crate::exit::Failure;
use anyhow::anyhow;
use reqwest::Url;
use std::{fs, io, net::IpAddr, path::Path};

/// Where standalone mode, started in the same folder, left its key.
const KEY_FILE: &str = "isocost-data/admin.key";

/// The key that was given, or the one that a standalone server of this folder left.
///
/// # Errors
/// [`Failure`] for wrong usage when there is neither.
pub(super) fn find(given: Option<String>, server: &Url) -> Result<String, Failure> {
    if let Some(key) = given {
        return Ok(key);
    }
    // The file is the key of a server on this machine; another one must not get to see it.
    if is_on_this_machine(server) {
        match fs::read_to_string(Path::new(KEY_FILE)) {
            Ok(key) => return Ok(key.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let error = anyhow::Error::new(error).context(format!("reading the key in {KEY_FILE}"));
                return Err(Failure::usage(error));
            }
        }
    }
    Err(Failure::usage(anyhow!(
        "an API key is needed: give --key or ISOCOST_KEY, or start in the folder that has {KEY_FILE} of a server on \
         this machine"
    )))
}

fn is_on_this_machine(server: &Url) -> bool {
    let host = server.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_this_machine_is_for_no_other_server() {
        let is_local = |url: &str| is_on_this_machine(&Url::parse(url).expect(url));
        for local in [
            "http://127.0.0.1:8080",
            "http://localhost",
            "http://[::1]:1",
            "http://127.1.2.3",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "http://10.0.0.1:8080",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
