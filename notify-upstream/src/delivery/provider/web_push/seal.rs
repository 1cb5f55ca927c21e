//! Message encryption for Web Push (RFC 8291), in one record of RFC 8188.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, ECDH_P256, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::hmac;
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
    let input = agreement::agree(ours, peer, (), |shared| {
        Ok(expand(&extract(&auth, shared), &info))
    })
    .ok()?;
    let key = extract(salt, &input);
    let (content, nonce) = (
        expand(&key, b"Content-Encoding: aes128gcm\0"),
        expand(&key, b"Content-Encoding: nonce\0"),
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

/// HKDF-Extract (RFC 5869 section 2.2) with SHA-256.
fn extract(salt: &[u8], input: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), input)
        .as_ref()
        .to_vec()
}

/// The first block of HKDF-Expand (section 2.3); no caller needs more than 32 bytes.
fn expand(key: &[u8], info: &[u8]) -> Vec<u8> {
    hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, key),
        &[info, &[1]].concat(),
    )
    .as_ref()
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_8291_example_is_reproduced() {
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).expect("base64url");
        let private = decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let ours = PrivateKey::from_private_key(&ECDH_P256, &private).expect("a key");
        let salt: [u8; 16] = decode("DGv6ra1nlYgDCS1FRnbzlw")
            .try_into()
            .expect("16 bytes");
        let sealed = seal_with(
            b"When I grow up, I want to be a watermelon",
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
            &ours,
            &salt,
        );
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz\
                        AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(
            sealed
                .map(|sealed| URL_SAFE_NO_PAD.encode(sealed))
                .as_deref(),
            Some(expected)
        );
    }

    #[test]
    fn long_message_or_invalid_key_is_rejected() {
        let key = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        assert!(
            seal(&[0; 3993], key, "BTBZMqHH6r4Tts7J_aSIgg")
                .is_some_and(|sealed| sealed.len() == 4096)
        );
        assert!(seal(&[0; 3994], key, "BTBZMqHH6r4Tts7J_aSIgg").is_none());
        assert!(seal(b"x", "AAAA", "BTBZMqHH6r4Tts7J_aSIgg").is_none());
    }
}
