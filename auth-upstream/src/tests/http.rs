//! The HTTP interface on a loopback socket.

use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::{Value, json};

use crate::testing::Fixture;

fn client() -> Client {
    Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .build()
        .expect("a client")
}

async fn post(url: &str, path: &str, body: &Value) -> Response {
    client()
        .post(format!("{url}{path}"))
        .json(body)
        .send()
        .await
        .expect("a response")
}

async fn codes(response: Response) -> (u16, Vec<(String, String)>) {
    let status = response.status().as_u16();
    let body: Value = response.json().await.expect("a problem");
    let errors = body["errors"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (
        status,
        errors
            .iter()
            .map(|error| (text(&error["pointer"]), text(&error["code"])))
            .collect(),
    )
}

#[tokio::test]
async fn token_responses_are_not_stored_and_set_no_cookie() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let body = json!({ "email": "ada@example.com", "password": "Password-1", "profile": { "firstName": "Ada" } });
    let registered = post(&url, "/auth/register", &body).await;
    assert_eq!(registered.status(), StatusCode::CREATED);
    let set: Value = registered.json().await.expect("a token set");
    let login = json!({ "email": "ada@example.com", "password": "Password-1" });
    let mut refresh = json!({ "refreshToken": set["refreshToken"] });
    let rows = [
        ("/auth/login", Some(&login)),
        ("/api/session", Some(&login)),
        ("/auth/tokens/refresh", None),
        ("/auth/refresh-user-token", None),
        ("/api/session", None),
    ];
    for (path, login) in rows {
        let response = post(&url, path, login.unwrap_or(&refresh)).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
        assert!(!response.headers().contains_key("set-cookie"), "{path}");
        assert_eq!(
            response.headers().contains_key("deprecation"),
            path == "/api/session"
        );
        let set: Value = response.json().await.expect("a token set");
        for field in ["accessToken", "idToken", "refreshToken", "expiresAt"] {
            assert!(set[field].is_string(), "{path} {field}");
        }
        refresh = json!({ "refreshToken": set["refreshToken"] });
    }
    let logout = post(&url, "/auth/logout", &refresh).await;
    assert_eq!(logout.status(), StatusCode::NO_CONTENT);
    let forgot = post(
        &url,
        "/auth/password/forgot",
        &json!({ "email": "nobody@example.com" }),
    )
    .await;
    assert_eq!(forgot.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn all_errors_of_a_request_are_reported_at_once() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let wrong = json!({ "email": "no address", "passwort": "x", "profile": { "phone": "555", "firstName": 7 } });
    let (status, mut errors) = codes(post(&url, "/auth/register", &wrong).await).await;
    errors.sort();
    let expected = [
        ("/email", "invalid_format"),
        ("/password", "missing_field"),
        ("/passwort", "unknown_field"),
        ("/profile/firstName", "invalid_type"),
        ("/profile/phone", "invalid_format"),
    ];
    assert_eq!(
        (status, errors),
        (
            400,
            expected.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()
        )
    );
    let (status, _) = codes(
        post(
            &url,
            "/api/session",
            &json!({ "refreshToken": "x", "email": "a@b.co" }),
        )
        .await,
    )
    .await;
    assert_eq!(status, 400);
    let long = json!({ "email": "ada@example.com", "password": "x".repeat(257) });
    let (status, errors) = codes(post(&url, "/auth/login", &long).await).await;
    assert_eq!((status, errors[0].1.as_str()), (400, "invalid_length"));
}

#[tokio::test]
async fn me_requires_a_valid_token() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let bare = client()
        .get(format!("{url}/auth/me"))
        .send()
        .await
        .expect("a response");
    assert_eq!(bare.headers()["www-authenticate"], "Bearer");
    assert_eq!(codes(bare).await.0, 401);
    let forged = client()
        .get(format!("{url}/auth/me"))
        .bearer_auth("a.b.c")
        .send()
        .await
        .expect("a response");
    assert_eq!(
        forged.headers()["www-authenticate"],
        "Bearer error=\"invalid_token\""
    );
}

#[tokio::test]
async fn temporary_token_is_sent_in_the_fragment_only() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let started = client()
        .get(format!("{url}/auth/social/login"))
        .send()
        .await
        .expect("a response");
    assert_eq!(
        (started.status(), &started.headers()["cache-control"]),
        (StatusCode::FOUND, &"no-store".parse().expect("v"))
    );
    let to = url::Url::parse(started.headers()["location"].to_str().expect("text")).expect("a URL");
    let (code, state) = fixture.provider.consent(&to, json!({}));
    let back = format!("{url}/auth/social/login/callback?code={code}&state={state}&scope=openid");
    let landed = client().get(back).send().await.expect("a response");
    assert_eq!(landed.headers()["referrer-policy"], "no-referrer");
    let location =
        url::Url::parse(landed.headers()["location"].to_str().expect("text")).expect("a URL");
    let token = location
        .fragment()
        .and_then(|text| text.strip_prefix("temporaryToken="))
        .expect("a token");
    assert_eq!((token.len(), location.query()), (43, None));
    let exchanged = post(
        &url,
        "/auth/tokens/exchange",
        &json!({ "temporaryToken": token }),
    )
    .await;
    assert_eq!(exchanged.headers()["cache-control"], "no-store");
    assert_eq!(exchanged.status(), StatusCode::OK);
    let again = post(
        &url,
        "/auth/tokens/exchange",
        &json!({ "temporaryToken": token }),
    )
    .await;
    assert_eq!(codes(again).await.0, 401);
    let mistyped = client()
        .get(format!("{url}/auth/social/login?codeChallenge=x"))
        .send()
        .await
        .expect("a response");
    assert_eq!(codes(mistyped).await.0, 400);
}
