//! The provider's signing key: RSA 2048, generated at the first start and stored in a file of mode
//! 0600.

use std::path::Path;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    KeyPair, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::exit::Exit;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::data_folder;

/// An RS256 signing key.
pub(crate) struct SigningKey {
    pair: RsaKeyPair,
    id: String,
}

// === impl SigningKey ===

impl SigningKey {
    /// Reads the key, or generates it. Generation takes up to a second of CPU time and must not run
    /// on an async worker thread.
    ///
    /// # Errors
    /// Exits with status 69 if the file cannot be read or written, or holds no RSA key.
    pub(crate) fn open(path: &Path) -> Result<Self, Exit> {
        let broken = |what: &str| Exit::unavailable(format!("{}: {what}", path.display()));
        let pkcs8 = match data_folder::read_optional(path)? {
            Some(bytes) => bytes,
            None => {
                let pair = RsaKeyPair::generate(KeySize::Rsa2048)
                    .map_err(|_| broken("cannot make a key"))?;
                let der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&pair)
                    .map_err(|_| broken("cannot write the key"))?;
                data_folder::write_private(path, der.as_ref())?;
                der.as_ref().to_vec()
            }
        };
        let pair =
            RsaKeyPair::from_pkcs8(&pkcs8).map_err(|_| broken("is not an RSA key; remove it"))?;
        let id = thumbprint(&pair);
        Ok(Self { pair, id })
    }

    /// Returns the public key as a JWK (RFC 7517).
    pub(crate) fn jwk(&self) -> Value {
        let (n, e) = components(&self.pair);
        json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id, "n": n, "e": e })
    }

    /// Returns a compact JWS (RFC 7515) of the claims.
    pub(crate) fn sign(&self, typ: &str, claims: &Value) -> String {
        let header = json!({ "alg": "RS256", "typ": typ, "kid": self.id });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let input = format!("{}.{}", encode(&header), encode(claims));
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                input.as_bytes(),
                &mut signature,
            )
            .expect(
                "the buffer is as long as the modulus and the key was checked when it was read",
            );
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Returns the claims of a token of this type if this key signed it.
    pub(crate) fn verify(&self, typ: &str, token: &str) -> Option<Value> {
        let (input, signature) = token.rsplit_once('.')?;
        let (header, claims) = input.split_once('.')?;
        let key =
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.pair.public_key().as_ref());
        key.verify(input.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?)
            .ok()?;
        let read =
            |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
        (read(header)?["typ"] == typ).then(|| read(claims))?
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn components(pair: &RsaKeyPair) -> (String, String) {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let key = pair.public_key();
    (
        encode(key.modulus().big_endian_without_leading_zero()),
        encode(key.exponent().big_endian_without_leading_zero()),
    )
}

/// Returns the JWK thumbprint (RFC 7638), which is the key id.
fn thumbprint(pair: &RsaKeyPair) -> String {
    let (n, e) = components(pair);
    URL_SAFE_NO_PAD.encode(Sha256::digest(format!(
        r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#
    )))
}
