//! Signatures of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, one for every live secret.

use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use base64::{Engine, alphabet, engine::GeneralPurpose, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// Secrets made elsewhere may come without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret as bytes; none when the text is not `whsec_` and base64.
fn key(secret: &str) -> Option<Vec<u8>> {
    LENIENT.decode(secret.strip_prefix(PREFIX)?).ok()
}

/// The value of the `webhook-signature` header: `v1,…` for each secret, separated by spaces, so that a receiver finds
/// the one it knows while secrets are being rotated. None when no secret can be used.
pub(super) fn signatures(secrets: &[String], id: &str, timestamp: i64, body: &str) -> Option<String> {
    let signed: Vec<String> = secrets
        .iter()
        .filter_map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key(secret)?).ok()?;
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body.as_bytes());
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        })
        .collect();
    (!signed.is_empty()).then(|| signed.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: i64 = 1_614_265_330;
    const BODY: &str = r#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_published_vector_of_standard_webhooks_holds() {
        let signed = signatures(&[SECRET.into()], ID, TIMESTAMP, BODY);
        assert_eq!(signed.as_deref(), Some(SIGNATURE));
    }

    #[test]
    fn every_live_secret_signs() {
        let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let signed = signatures(&[other.into(), SECRET.into()], ID, TIMESTAMP, BODY).expect("signed");
        let parts: Vec<_> = signed.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1], SIGNATURE);
        assert_ne!(parts[0], SIGNATURE);
    }

    #[test]
    fn a_secret_without_padding_is_read() {
        let padded = signatures(&["whsec_AAECAw==".into()], ID, TIMESTAMP, BODY);
        assert!(padded.is_some());
        assert_eq!(signatures(&["whsec_AAECAw".into()], ID, TIMESTAMP, BODY), padded);
    }

    #[test]
    fn nothing_is_signed_without_a_usable_secret() {
        for secrets in [vec![], vec!["plain".into()], vec!["whsec_%%%".into()]] {
            assert_eq!(signatures(&secrets, ID, TIMESTAMP, BODY), None);
        }
    }
}
