use super::harness::{EMAIL, PASSWORD, start};

#[tokio::test]
async fn tokens_keys_and_accounts_survive_restart() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let keys = pool.get("/.well-known/jwks.json").await;
    let password = pool.account("auth");
    let client = pool.actor().client_id.clone();
    let pool = pool.restart().await;
    assert_eq!(pool.get("/.well-known/jwks.json").await, keys);
    assert_eq!(
        (&pool.actor().client_id, &pool.account("auth")),
        (&client, &password)
    );
    pool.verify(tokens.access_token().expect("access token"))
        .await
        .expect("accepted");
    pool.initiate(pool.service(), "auth", password.expose())
        .await
        .expect("signed in");
    pool.get_user(&tokens).await.expect("known");
}

#[tokio::test]
async fn discovery_returns_issuer_and_keys() {
    let pool = start().await;
    let issuer = pool.actor().issuer.clone();
    let id = pool.actor().pool_id.clone();
    let document = pool
        .get(&format!("/{id}/.well-known/openid-configuration"))
        .await;
    assert_eq!(document["issuer"], issuer.as_str());
    assert_eq!(
        document["jwks_uri"],
        format!("{issuer}/.well-known/jwks.json")
    );
    assert_eq!(
        pool.get("/.well-known/openid-configuration").await["issuer"],
        issuer.as_str()
    );
    let all = pool.get("/.well-known/jwks.json").await;
    assert_eq!(all["keys"].as_array().map(Vec::len), Some(2));
    let key = &all["keys"][0];
    assert_eq!(
        (&key["kty"], &key["alg"], &key["use"]),
        (&"RSA".into(), &"RS256".into(), &"sig".into())
    );
    assert_eq!(key.get("d"), None);
    let missing = reqwest::get(format!(
        "{}/us-west-2_nothere00/.well-known/jwks.json",
        pool.url
    ))
    .await;
    assert_eq!(missing.expect("answer").status(), 404);
}

#[tokio::test]
async fn jwks_with_matching_etag_returns_not_modified() {
    let pool = start().await;
    let url = format!("{}/.well-known/jwks.json", pool.url);
    let first = reqwest::get(&url).await.expect("answer");
    let etag = first.headers()["etag"].clone();
    let again = reqwest::Client::new()
        .get(&url)
        .header("if-none-match", etag)
        .send()
        .await;
    assert_eq!(again.expect("answer").status(), 304);
}
