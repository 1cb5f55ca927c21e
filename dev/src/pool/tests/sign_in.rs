use serde_json::json;

use super::harness::{PASSWORD, hash, start};

#[tokio::test]
async fn service_id_cannot_be_set_by_users() {
    let pool = start().await;
    let service = &pool.provisioned.service;
    let body = json!({ "ClientId": service.client_id, "SecretHash": hash(service, "evil"),
        "Username": "evil", "Password": PASSWORD });
    let refused = pool.call("SignUp", body).await.expect_err("rejected");
    assert!(refused.contains("SignUp is not permitted"), "{refused}");
    let body =
        json!({ "UserPoolId": service.pool_id, "Username": "new", "TemporaryPassword": PASSWORD });
    pool.call("AdminCreateUser", body).await.expect("created");
    let asked = pool.initiate(service, "USER_PASSWORD_AUTH", "new", PASSWORD);
    let asked = asked.await.expect("asked");
    let hash = hash(service, "new");
    let own = [
        ("USERNAME", "new"),
        ("NEW_PASSWORD", "Fresher-Horse-8"),
        ("SECRET_HASH", &*hash),
    ];
    for name in ["custom:service_id", "email", "given_name"] {
        let written = format!("userAttributes.{name}");
        let responses = own.into_iter().chain([(&*written, "auth")]).collect();
        let refused = pool.respond(service, &asked, responses).await;
        let refused = refused.expect_err("rejected");
        assert!(refused.contains("Cannot modify"), "{refused}");
    }
    let answered = pool.respond(service, &asked, own.into()).await;
    answered.expect("the challenge is not used up");
}
