//! Properties of the strict parser over generated and mutated tokens.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixtures::{Signer, b64, user_claims};
use crate::token::jwk::VerificationKey;
use crate::token::jws::CompactJws;
use crate::token::strict_json::StrictObject;
use crate::token::trust::TokenTimes;

static ED: LazyLock<Signer> = LazyLock::new(Signer::ed);

fn json_text() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map: BTreeMap<String, Value>| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn parser_never_panics(text in any::<String>()) {
        let _refused = CompactJws::read(&text).is_err();
    }

    #[test]
    fn parsed_token_has_one_spelling(text in "[A-Za-z0-9_=+/-]{0,40}\\.[A-Za-z0-9_=+/-]{0,40}\\.[A-Za-z0-9_=+/-]{0,8}") {
        if CompactJws::read(&text).is_ok() {
            for part in text.split('.') {
                let octets = URL_SAFE_NO_PAD.decode(part).expect("base64url");
                prop_assert_eq!(b64(octets), part);
            }
        }
    }

    #[test]
    fn strict_object_equals_serde_json(value in json_text()) {
        let text = json!({"value": value}).to_string();
        let expected: Value = serde_json::from_str(&text).expect("JSON");
        prop_assert_eq!(StrictObject::read(text.as_bytes()).map(|read| Value::Object(read.to_map())), Ok(expected));
    }

    #[test]
    fn accepted_text_is_json(text in "[\\{\\}\\[\\]\",:a0-9.eE+ -]{0,24}") {
        if let Ok(read) = StrictObject::read(text.as_bytes()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), Value::Object(read.to_map()));
        }
    }

    #[test]
    fn token_is_valid_between_its_times(exp in any::<i64>(), nbf in any::<i64>(), iat in any::<i64>(), now in any::<i64>()) {
        let claims = json!({"exp": exp, "nbf": nbf, "iat": iat});
        let times = TokenTimes::read(&StrictObject::read(claims.to_string().as_bytes()).expect("object")).expect("integers");
        let expected = now < exp && i128::from(nbf.max(iat)) <= i128::from(now) + 5;
        prop_assert_eq!(times.check(now, 5).is_ok(), expected || (now < exp && now > i64::MAX - 5));
    }

    #[test]
    fn one_changed_byte_never_verifies(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let token = ED.token("k", &user_claims());
        let place = place.index(token.len());
        let mut bytes = token.clone().into_bytes();
        bytes[place] = byte;
        let Ok(mutated) = String::from_utf8(bytes) else { return Ok(()) };
        prop_assume!(mutated != token);
        let (_, key) = VerificationKey::read(ED.jwk("k").as_object().expect("object")).expect("a key");
        let verified = CompactJws::read(&mutated).is_ok_and(|jws| key.check(&jws).is_ok());
        prop_assert!(!verified, "{}", mutated);
    }
}
