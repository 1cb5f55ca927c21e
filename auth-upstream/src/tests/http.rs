//! The HTTP interface on a loopback socket.

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::testing::{ADA, Fixture, PASSWORD, http};

async fn send(request: RequestBuilder) -> Response {
    request.send().await.expect("a response")
}

#[tokio::test]
async fn token_responses_are_not_stored_and_set_no_cookie() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let post =
        async |path: &str, body: &Value| send(http().post(format!("{url}{path}")).json(body)).await;
    let login = json!({ "email": ADA, "password": PASSWORD });
    let registered = post("/auth/register", &login).await;
    assert_eq!(registered.status(), StatusCode::CREATED);
    let set: Value = registered.json().await.expect("a token set");
    let mut refresh = json!({ "refreshToken": set["refreshToken"] });
    let rows = [
        ("/auth/login", Some(&login)),
        ("/api/session", Some(&login)),
        ("/auth/tokens/refresh", None),
        ("/auth/refresh-user-token", None),
        ("/api/session", None),
    ];
    for (path, login) in rows {
        let response = post(path, login.unwrap_or(&refresh)).await;
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
    let logout = post("/auth/logout", &refresh).await;
    assert_eq!(logout.status(), StatusCode::NO_CONTENT);
    let unknown = json!({ "email": "nobody@example.com" });
    let forgot = post("/auth/password/forgot", &unknown).await;
    assert_eq!(forgot.status(), StatusCode::NO_CONTENT);
    let both = json!({ "refreshToken": "x", "email": ADA });
    let ambiguous = post("/api/session", &both).await;
    assert_eq!(ambiguous.status(), StatusCode::BAD_REQUEST);
}
