//! One test per rejection reason.

use std::time::Duration;

use serde_json::{Value, json};

use super::fixtures::{
    NOW_S, OTHER_RSA, RSA, SERVICES, Signer, World, b64, service_claims, user_claims, with,
};
use crate::problem::Code;
use crate::token::TokenError;

const HEADER: &[u8] = br#"{"alg":"RS256","kid":"u1"}"#;

async fn verdict(token: &str) -> TokenError {
    World::usual().await.rejection(token).await
}

async fn verdict_on_header(header: &Value) -> TokenError {
    verdict(&RSA.token_with(header, &user_claims())).await
}

async fn verdict_on_claims(claims: &Value) -> TokenError {
    verdict(&RSA.token("u1", claims)).await
}

#[tokio::test]
async fn only_the_algorithm_of_the_key_is_accepted() {
    let (ec, ed) = (Signer::ec(), Signer::ed());
    let keys = [RSA.jwk("u1"), ec.jwk("u2"), ed.jwk("u3")];
    let world = World::new(&keys, &[]).await;
    let signers = [(&*RSA, "u1"), (&ec, "u2"), (&ed, "u3")];
    for (signer, key_id) in signers {
        for (other, _) in signers {
            let header = json!({"alg": other.alg(), "kid": key_id});
            let token = signer.token_with(&header, &user_claims());
            let error = world.verifier.verify(&token).await.err();
            let is_own = other.alg() == signer.alg();
            assert_eq!(error, (!is_own).then_some(TokenError::AlgorithmOfKey));
        }
    }
}

#[tokio::test]
async fn none_hmac_and_other_algorithms_are_rejected() {
    for alg in [
        "none", "None", "NONE", "HS256", "HS384", "HS512", "RS384", "RS512", "PS256", "ES384",
        "ES512", "ES256K", "Ed25519", "rs256", "",
    ] {
        let error = verdict_on_header(&json!({"alg": alg, "kid": "u1"})).await;
        assert_eq!(error, TokenError::Algorithm, "{alg}");
    }
    let header = b64(r#"{"alg":"none","kid":"u1"}"#);
    let unsigned = format!("{header}.{}.", b64(user_claims().to_string()));
    let code = verdict(&unsigned).await.code();
    assert_eq!(code, Code::TokenAlgorithmNotAccepted);
    for header in [
        json!({"kid": "u1"}),
        json!({"alg": null, "kid": "u1"}),
        json!({"alg": ["RS256"], "kid": "u1"}),
    ] {
        assert_eq!(verdict_on_header(&header).await, TokenError::HeaderType);
    }
}

#[tokio::test]
async fn missing_or_non_text_kid_is_rejected() {
    for header in [
        json!({"alg": "RS256"}),
        json!({"alg": "RS256", "kid": null}),
        json!({"alg": "RS256", "kid": 1}),
        json!({"alg": "RS256", "kid": ["u1"]}),
        json!({"alg": "RS256", "kid": ""}),
        json!({"alg": "RS256", "kid": "k".repeat(600)}),
    ] {
        let error = verdict_on_header(&header).await;
        assert_eq!(error, TokenError::KeyIdMissing, "{header}");
        assert_eq!(error.code(), Code::TokenMalformed);
    }
}

#[tokio::test]
async fn header_parameters_that_select_keys_are_rejected() {
    for name in ["crit", "jku", "x5u", "x5c", "jwk", "b64", "zip"] {
        let plain = [json!("x"), json!([name]), json!(false), json!(null)];
        for value in plain.into_iter().chain([RSA.jwk("u1")]) {
            let error = verdict_on_header(&json!({"alg": "RS256", "kid": "u1", name: value})).await;
            assert_eq!(error.code(), Code::TokenHeaderNotAccepted, "{name}");
        }
    }
    for name in ["typ", "cty", "x5t", "x5t#S256", "enc", "url", "nonce"] {
        let error = verdict_on_header(&json!({"alg": "RS256", "kid": "u1", name: 1})).await;
        assert_eq!(error, TokenError::HeaderType);
    }
}

#[tokio::test]
async fn typ_and_unknown_parameters_are_ignored() {
    let header =
        json!({"alg": "RS256", "kid": "u1", "typ": "at+jwt", "x5t": "abc", "foo": {"bar": 1}});
    let token = RSA.token_with(&header, &user_claims());
    assert!(World::usual().await.accepts(&token).await);
}

#[tokio::test]
async fn missing_required_claim_is_rejected() {
    let verdict_on =
        async |name: &str, value: Value| verdict_on_claims(&with(user_claims(), name, value)).await;
    let named = |name| if name == "client_id" { "client" } else { name };
    for name in ["exp", "iss", "sub", "token_use", "client_id"] {
        let missing = TokenError::ClaimMissing(named(name));
        assert_eq!(verdict_on(name, Value::Null).await, missing);
    }
    for name in ["iss", "sub", "token_use", "client_id"] {
        let missing = TokenError::ClaimMissing(named(name));
        assert_eq!(verdict_on(name, json!("")).await, missing);
        let mistyped = TokenError::ClaimType(named(name));
        assert_eq!(verdict_on(name, json!(7)).await, mistyped);
    }
    let token = OTHER_RSA.token("s1", &with(service_claims(), "aud", Value::Null));
    assert_eq!(verdict(&token).await, TokenError::ClaimMissing("aud"));
    let token = OTHER_RSA.token("s1", &with(service_claims(), "token_use", json!("access")));
    // An access token has its client in client_id.
    assert_eq!(verdict(&token).await, TokenError::ClaimMissing("client"));
}

#[tokio::test]
async fn unused_registered_claims_must_have_their_types() {
    for (name, value) in [
        ("jti", json!(7)),
        ("jti", json!([])),
        ("aud", json!(7)),
        ("aud", json!([7])),
        ("aud", json!({})),
    ] {
        let error = verdict_on_claims(&with(user_claims(), name, value)).await;
        assert_eq!(error, TokenError::ClaimType(name));
    }
    let token = RSA.token("u1", &with(user_claims(), "aud", json!(["a", "b"])));
    assert!(World::usual().await.accepts(&token).await);
}

/// Returns a user token with a claim that is written like this.
fn token_with(name: &str, written: &str) -> String {
    let payload = with(user_claims(), name, json!("HERE")).to_string();
    let payload = payload.replace("\"HERE\"", written);
    RSA.raw(HEADER, payload.as_bytes())
}

#[tokio::test]
async fn instant_that_is_no_number_is_rejected() {
    for name in ["exp", "nbf", "iat"] {
        let values = r#""1800003600" true null [] 18446744073709551615 1e300 1e400"#;
        for value in values.split(' ') {
            let error = verdict(&token_with(name, value)).await;
            assert_eq!(error.code(), Code::TokenMalformed, "{name}: {value}");
        }
    }
}

#[tokio::test]
async fn instant_may_have_a_fraction_or_an_exponent() {
    let [now, next, late] = [0, 1, 6].map(|ahead| NOW_S + ahead);
    let exponent = |seconds: i64| format!("{}e-3", seconds * 1000);
    for (name, value, expected) in [
        ("exp", next.to_string(), None),
        ("exp", now.to_string(), Some(TokenError::Expired)),
        ("exp", "-1".to_owned(), Some(TokenError::Expired)),
        ("exp", format!("{next}.123456"), None),
        ("exp", format!("{now}.999"), Some(TokenError::Expired)),
        ("exp", exponent(next), None),
        ("exp", exponent(now), Some(TokenError::Expired)),
        ("exp", "4.0E9".to_owned(), None),
        ("iat", format!("{now}.123456"), None),
        ("iat", format!("{late}.0"), Some(TokenError::NotYetValid)),
        ("nbf", exponent(now), None),
        ("nbf", exponent(late), Some(TokenError::NotYetValid)),
        ("nbf", "-0.5".to_owned(), None),
    ] {
        let world = World::usual().await;
        let verified = world.verifier.verify(&token_with(name, &value)).await;
        assert_eq!(verified.err(), expected, "{name}: {value}");
    }
}

#[tokio::test]
async fn nbf_and_iat_beyond_the_leeway_are_rejected() {
    for name in ["nbf", "iat"] {
        for leeway in [None, Some(0), Some(60)] {
            let world = World::with_options(&[RSA.jwk("u1")], &[], |mut options| {
                if let Some(seconds) = leeway {
                    options.limits.leeway = Duration::from_secs(seconds);
                }
                options
            })
            .await;
            let allowed = leeway.map_or(5, u64::cast_signed);
            let at = |ahead: i64| RSA.token("u1", &with(user_claims(), name, json!(NOW_S + ahead)));
            assert!(world.accepts(&at(allowed)).await);
            let early = world.rejection(&at(allowed + 1)).await;
            assert_eq!(early, TokenError::NotYetValid, "{name}");
        }
    }
}

#[tokio::test]
async fn duplicate_name_is_rejected() {
    let claims = user_claims().to_string();
    let again = |extra: &str| claims.replacen('{', &format!("{{{extra},"), 1);
    for payload in [
        again(r#""sub":"other""#),
        again(r#""s\u0075b":"other""#),
        again(r#""a":{"b":1,"b":2}"#),
        again(r#""a":[{"b":1,"b":1}]"#),
    ] {
        let token = RSA.raw(HEADER, payload.as_bytes());
        let error = verdict(&token).await;
        assert_eq!(error, TokenError::DuplicateName, "{payload}");
    }
    for header in [
        r#"{"alg":"RS256","kid":"u1","kid":"u1"}"#,
        r#"{"alg":"none","alg":"RS256","kid":"u1"}"#,
    ] {
        let token = RSA.raw(header.as_bytes(), claims.as_bytes());
        assert_eq!(verdict(&token).await, TokenError::DuplicateName);
    }
}

#[tokio::test]
async fn base64url_has_one_spelling() {
    let token = RSA.token("u1", &user_claims());
    let parts: Vec<&str> = token.split('.').collect();
    for place in 0..3 {
        for (before, after) in [
            ("", "="),
            ("", "=="),
            ("", " "),
            ("+", ""),
            ("", "\n"),
            ("", "%3D"),
        ] {
            let mut parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            parts[place] = format!("{before}{}{after}", parts[place]);
            let error = verdict(&parts.join(".")).await;
            let is_expected = matches!(error, TokenError::NotBase64Url | TokenError::NotJson);
            assert!(is_expected, "{place}: {error}");
        }
    }
    // 256 bytes leave four unused bits in the last character: a stray bit spells the same signature
    // again.
    let stray = stray_bit(&token);
    assert_eq!(verdict(&stray).await, TokenError::NotBase64Url);
}

/// Sets the lowest bit of the token's last character, which no octet of the signature uses.
fn stray_bit(token: &str) -> String {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (rest, last) = token.split_at(token.len() - 1);
    let value = ALPHABET.find(last).expect("base64url");
    format!("{rest}{}", &ALPHABET[(value | 1)..=(value | 1)])
}

#[tokio::test]
async fn token_above_the_limit_is_rejected() {
    let filled = |bytes: usize| {
        let filler = json!("x".repeat(bytes));
        RSA.token("u1", &with(user_claims(), "filler", filler))
    };
    for limit in [16 << 10, 8 << 10] {
        let world = World::with_options(&[RSA.jwk("u1")], &[], |mut options| {
            // The first is the default.
            if limit < options.limits.bytes {
                options.limits.bytes = limit;
            }
            options
        })
        .await;
        let most = (limit * 3 / 4 - 700..limit).map(filled);
        let mut most = most.filter(|token| token.len() > limit - 4);
        let most = most.next().expect("one fits");
        assert!(most.len() <= limit && world.accepts(&most).await);
        for longer in [filled(limit * 3 / 4), "a".repeat(limit + 1)] {
            let refused = world.rejection(&longer).await;
            assert_eq!(refused, TokenError::TooLong);
        }
    }
}

#[tokio::test]
async fn token_without_exactly_three_parts_is_rejected() {
    let token = RSA.token("u1", &user_claims());
    let longer = [format!("{token}."), format!("{token}.a.b.c")];
    let others = ["", "a", "a.b", ".", "a.b.c.d", "a.b.c.d.e.f"];
    for other in others.into_iter().chain(longer.iter().map(String::as_str)) {
        assert_eq!(verdict(other).await, TokenError::NotThreeParts, "{other}");
    }
    let encrypted = format!("{token}.a.b");
    assert_eq!(verdict(&encrypted).await, TokenError::Encrypted);
    assert_eq!(verdict("..").await, TokenError::NotJson);
    assert_eq!(verdict("....").await, TokenError::Encrypted);
}

#[tokio::test]
async fn header_or_payload_that_is_no_object_is_rejected() {
    let claims = user_claims().to_string();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
    let texts = r#"|null|[]|"x"|{|{}x|{}{}|{"a":01}|{'a':1}"#.split('|');
    let texts = texts.chain(["\u{feff}{}", "{\"a\":\"\u{0}\"}", &deep]);
    for text in texts.map(str::as_bytes).chain([&b"{\"sub\":\"\xff\"}"[..]]) {
        for token in [RSA.raw(text, claims.as_bytes()), RSA.raw(HEADER, text)] {
            assert_eq!(verdict(&token).await, TokenError::NotJson, "{text:?}");
        }
    }
}

#[tokio::test]
async fn key_of_another_issuer_does_not_verify() {
    // Signed with the user pool's key and kid, with the service pool as issuer, and the other way
    // round.
    for (signer, key_id, claims) in [
        (&RSA, "u1", service_claims()),
        (&OTHER_RSA, "s1", user_claims()),
    ] {
        let error = verdict(&signer.token(key_id, &claims)).await;
        assert_eq!(error, TokenError::KeyUnknown);
    }
    let same_name = World::new(&[RSA.jwk("k")], &[OTHER_RSA.jwk("k")]).await;
    let token = RSA.token("k", &with(service_claims(), "iss", json!(SERVICES)));
    assert_eq!(same_name.rejection(&token).await, TokenError::Signature);
}
