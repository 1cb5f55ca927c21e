//! Message encryption for Web Push (RFC 8291), in one record of RFC 8188.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, ECDH_P256, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Size of the only record, and the maximum that push services accept.
const RECORD_BYTES: u32 = 4096;
/// Maximum size of a message.
pub(crate) const MAX_PAYLOAD_BYTES: usize = RECORD_BYTES as usize - OVERHEAD_BYTES;
/// Header, tag and padding delimiter of the record.
const OVERHEAD_BYTES: usize = 16 + 4 + 1 + 65 + 16 + 1;

/// Encrypts a message for a browser. Returns `None` if the keys are invalid or the message is too
/// long.
pub(super) fn seal(plain: &[u8], p256dh: &str, auth: &str) -> Option<Vec<u8>> {
    let mut salt = [0; 16];
    SystemRandom::new().fill(&mut salt).ok()?;
    seal_with(
        plain,
        p256dh,
        auth,
        &PrivateKey::generate(&ECDH_P256).ok()?,
        &salt,
    )
}

fn seal_with(
    plain: &[u8],
    p256dh: &str,
    auth: &str,
    ours: &PrivateKey,
    salt: &[u8; 16],
) -> Option<Vec<u8>> {
    if plain.len() > MAX_PAYLOAD_BYTES {
        return None;
    }
    let theirs = URL_SAFE_NO_PAD.decode(p256dh).ok()?;
    let auth = URL_SAFE_NO_PAD.decode(auth).ok()?;
    let public = ours.compute_public_key().ok()?;
    let info = [b"WebPush: info\0".as_slice(), &theirs, public.as_ref()].concat();
    let peer = UnparsedPublicKey::new(&ECDH_P256, &theirs);
    let secret = agreement::agree(ours, peer, (), |shared| {
        hkdf(&auth, shared, &info).ok_or(())
    });
    let secret = secret.ok()?;
    let (content, nonce) = (
        hkdf(salt, &secret, b"Content-Encoding: aes128gcm\0")?,
        hkdf(salt, &secret, b"Content-Encoding: nonce\0")?,
    );
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &content[..16]).ok()?);
    let nonce = Nonce::try_assume_unique_for_key(&nonce[..12]).ok()?;
    let mut sealed = [plain, &[2]].concat();
    cipher
        .seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed)
        .ok()?;
    let header = [
        salt.as_slice(),
        &RECORD_BYTES.to_be_bytes(),
        &[65],
        public.as_ref(),
    ]
    .concat();
    Some([header, sealed].concat())
}

/// Returns 32 bytes of HKDF with SHA-256 (RFC 5869).
fn hkdf(salt: &[u8], secret: &[u8], info: &[u8]) -> Option<[u8; 32]> {
    let (mut key, infos) = ([0; 32], [info]);
    let pseudorandom = Salt::new(HKDF_SHA256, salt).extract(secret);
    let expanded = pseudorandom.expand(&infos, HKDF_SHA256);
    expanded.ok()?.fill(&mut key).ok()?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    #[test]
    fn rfc_8291_example_is_reproduced() {
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).expect("base64url");
        let private = decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let ours = PrivateKey::from_private_key(&ECDH_P256, &private).expect("a key");
        let salt: [u8; 16] = decode("DGv6ra1nlYgDCS1FRnbzlw")
            .try_into()
            .expect("16 bytes");
        let text = b"When I grow up, I want to be a watermelon";
        let sealed = seal_with(text, PUBLIC, AUTH, &ours, &salt);
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz\
                        AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        let sealed = sealed.map(|sealed| URL_SAFE_NO_PAD.encode(sealed));
        assert_eq!(sealed.as_deref(), Some(expected));
    }

    #[test]
    fn long_message_or_invalid_key_is_rejected() {
        let sealed = seal(&[0; 3993], PUBLIC, AUTH);
        assert_eq!(sealed.map(|sealed| sealed.len()), Some(4096));
        assert!(seal(&[0; 3994], PUBLIC, AUTH).is_none());
        assert!(seal(b"x", "AAAA", AUTH).is_none());
    }
}
