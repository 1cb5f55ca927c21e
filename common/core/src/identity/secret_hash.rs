//! Cognito's `SECRET_HASH`.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns Cognito's `SECRET_HASH`: Base64 of HMAC-SHA256, keyed with the client secret, over user
/// name and client id ("Computing secret hash values" in the Amazon Cognito developer guide).
///
/// `username` is the name as entered for sign-in, and the pool's user name for challenges and
/// refresh.
#[must_use]
pub fn secret_hash(username: &str, client_id: &str, client_secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, client_secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(username.as_bytes());
    context.update(client_id.as_bytes());
    STANDARD.encode(context.sign())
}
