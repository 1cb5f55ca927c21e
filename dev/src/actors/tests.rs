use super::*;
use crate::testing::{TestIssuers, send_request, serve_router};

async fn start() -> (TestIssuers, String, reqwest::Client) {
    let pools = TestIssuers::start().await;
    let service = ActorService::new(
        Arc::clone(&pools.verifier),
        pools.sqlite.clone(),
        pools.clock.clone(),
    );
    let url = serve_router(router(service)).await;
    (pools, url, reqwest::Client::new())
}

#[tokio::test]
async fn registered_actor_reads_own_profile() {
    let (pools, url, client) = start().await;
    let body = json!({
        "actorId": "s-1", "email": "ada@example.com",
        "profile": {"firstName": "Ada", "phone": "+15550100", "actorId": "forged", "x": {"y": [1]}},
    });
    let register = || client.post(format!("{url}/actors/register")).json(&body);
    let (status, first) = send_request(register(), &pools.service("auth")).await;
    assert_eq!(
        (status, &first["profile"]["firstName"]),
        (201, &"Ada".into())
    );
    assert_eq!(
        send_request(register(), &pools.service("auth")).await,
        (200, first)
    );
    let mut other = body.clone();
    other["email"] = "eve@example.com".into();
    let other = client.post(format!("{url}/actors/register")).json(&other);
    assert_eq!(send_request(other, &pools.service("auth")).await.0, 422);

    let get = |path: &str| client.get(format!("{url}{path}"));
    let (status, actor) = send_request(get("/actors/s-1"), &pools.user("s-1", &[])).await;
    assert_eq!(status, 200);
    let expected = json!({
        "actorId": "s-1", "email": "ada@example.com", "firstName": "Ada", "phone": "+15550100", "x": {"y": [1]},
        "createdAt": "2027-01-15T08:00:00.000Z",
    });
    assert_eq!(actor, expected);
    assert_eq!(
        send_request(get("/actors/s-1"), &pools.service("notify"))
            .await
            .1,
        expected
    );
    assert_eq!(
        send_request(get("/actor?actorId=s-1"), &pools.user("s-1", &[])).await,
        (200, json!([expected]))
    );
    assert_eq!(
        send_request(get("/actors/s-1"), &pools.user("s-2", &[]))
            .await
            .0,
        404
    );
    assert_eq!(
        send_request(get("/actor?actorId=s-1"), &pools.user("s-2", &[])).await,
        (200, json!([]))
    );
    let recruiter = pools.user("s-2", &["recruiters"]);
    for caller in [recruiter, pools.service("document")] {
        let found = send_request(get("/candidates"), &caller).await;
        assert_eq!(found, (200, json!({ "candidates": [expected] })));
    }
    let user = pools.user("s-1", &["admin"]);
    for path in ["/candidates", "/candidates/s-1"] {
        assert_eq!(send_request(get(path), &user).await.0, 403);
    }
    assert_eq!(
        send_request(get("/actor"), &pools.service("notify"))
            .await
            .0,
        400
    );
}

#[tokio::test]
async fn recruiter_adds_and_reads_candidates() {
    let (pools, url, client) = start().await;
    let recruiter = pools.user("s-2", &["recruiters"]);
    let body = json!({"email": "grace@example.com", "profile": {"firstName": "Grace"}});
    let post = || client.post(format!("{url}/candidates")).json(&body);
    assert_eq!(send_request(post(), &pools.user("s-1", &[])).await.0, 403);
    let added = post().bearer_auth(&recruiter).send().await.expect("answer");
    assert_eq!(added.status(), 201);
    let location = added.headers()["location"]
        .to_str()
        .expect("text")
        .to_owned();
    let added: Value = added.json().await.expect("JSON");
    assert_eq!(
        location,
        format!("/candidates/{}", added["actorId"].as_str().expect("id"))
    );
    let read = client.get(format!("{url}{location}"));
    assert_eq!(send_request(read, &recruiter).await, (200, added.clone()));
    assert_eq!(
        (&added["email"], &added["firstName"]),
        (&body["email"], &"Grace".into())
    );
    let none = client.get(format!("{url}/candidates/none"));
    assert_eq!(send_request(none, &recruiter).await.0, 404);
}

#[tokio::test]
async fn registration_by_other_callers_is_rejected() {
    let (pools, url, client) = start().await;
    let register = || {
        client
            .post(format!("{url}/actors/register"))
            .json(&json!({}))
    };
    for (token, code) in [
        (pools.user("s-1", &["admin"]), "service_required"),
        (pools.service("notify"), "service_not_allowed"),
    ] {
        let (status, body) = send_request(register(), &token).await;
        assert_eq!((status, &body["code"]), (401, &code.into()));
    }
    assert_eq!(send_request(register(), "nonsense").await.0, 401);
    let (status, body) = send_request(register(), &pools.service("auth")).await;
    let pointers: Vec<&str> = body["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    assert_eq!((status, pointers), (400, vec!["/actorId", "/email"]));
}

#[tokio::test]
async fn invalid_profile_is_rejected_with_all_errors() {
    let (pools, url, client) = start().await;
    let body =
        json!({"actorId": "a", "email": "a@b.c", "profile": {"firstName": 1, "phone": []}, "y": 1});
    let register = client.post(format!("{url}/actors/register")).json(&body);
    let (status, body) = send_request(register, &pools.service("auth")).await;
    assert_eq!(
        (status, body["errors"].as_array().map(Vec::len)),
        (400, Some(3)),
        "{body}"
    );
}

#[tokio::test]
async fn feature_change_requires_admin_group() {
    let (pools, url, client) = start().await;
    let put = |name: &str, body: Value| {
        client
            .put(format!("{url}/admin/features/{name}"))
            .json(&body)
    };
    let settings = json!({"enabled": true, "share": 0.5});
    let (status, body) = send_request(
        put("dark-mode", settings.clone()),
        &pools.user("s-1", &["x", "admin"]),
    )
    .await;
    assert_eq!(
        (status, &body["featureName"], &body["settings"]),
        (200, &"dark-mode".into(), &settings)
    );
    assert_eq!(
        send_request(
            put("dark-mode", settings.clone()),
            &pools.user("s-1", &["x"])
        )
        .await
        .0,
        403
    );
    assert_eq!(
        send_request(put("dark-mode", settings), &pools.service("auth"))
            .await
            .0,
        401
    );
    assert_eq!(
        send_request(put("dark-mode", json!([1])), &pools.user("s-1", &["admin"]))
            .await
            .0,
        400
    );
}
