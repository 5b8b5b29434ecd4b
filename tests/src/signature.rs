//! Standard Webhooks signatures, checked as a receiver would, from the published text and not from our code.

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::receiver::Hit;

/// Whether one of the signatures in `webhook-signature` is that of the secret over id, timestamp and body.
///
/// # Errors
/// When a header is missing, or the secret is not `whsec_` and Base64.
pub fn is_signed_by(hit: &Hit, secret: &str) -> Result<bool> {
    let key = secret
        .strip_prefix("whsec_")
        .context("a secret begins with whsec_")?;
    let key = BASE64_STANDARD
        .decode(key)
        .context("a secret is Base64 behind whsec_")?;
    ensure!(
        (24..=64).contains(&key.len()),
        "the secret has {} bytes",
        key.len()
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(&key)?;
    mac.update(hit.header("webhook-id")?.as_bytes());
    mac.update(b".");
    mac.update(hit.header("webhook-timestamp")?.as_bytes());
    mac.update(b".");
    mac.update(&hit.body);
    let expected = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    Ok(hit
        .header("webhook-signature")?
        .split(' ')
        .any(|signature| signature == expected))
}
