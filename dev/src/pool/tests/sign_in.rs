use super::harness::{PASSWORD, error_text, start};

#[tokio::test]
async fn service_id_cannot_be_set_by_users() {
    let pool = start().await;
    let service = pool.service();
    let call = pool
        .anonymous
        .sign_up()
        .client_id(&service.client_id)
        .username("evil")
        .password(PASSWORD);
    let refused = call
        .set_secret_hash(service.secret_hash("evil"))
        .send()
        .await
        .map_err(error_text);
    assert!(
        refused
            .expect_err("rejected")
            .contains("SignUp is not permitted")
    );
    let create = pool
        .admin
        .admin_create_user()
        .user_pool_id(&service.pool_id);
    let create = create.username("new").temporary_password(PASSWORD);
    create.send().await.expect("created");
    let asked = pool
        .initiate(service, "new", PASSWORD)
        .await
        .expect("asked");
    let call = pool.anonymous.respond_to_auth_challenge();
    let call = call
        .client_id(&service.client_id)
        .set_session(asked.session);
    let call = call.challenge_name("NEW_PASSWORD_REQUIRED".into());
    let answers = [
        ("USERNAME", "new"),
        ("NEW_PASSWORD", "Fresher-Horse-8"),
        (
            "SECRET_HASH",
            &service.secret_hash("new").expect("a secret"),
        ),
    ];
    let call = answers.iter().fold(call, |call, (name, value)| {
        call.challenge_responses(*name, *value)
    });
    for name in ["custom:service_id", "email", "given_name"] {
        let written = format!("userAttributes.{name}");
        let call = call.clone().challenge_responses(written, "auth");
        let refused = call.send().await.map_err(error_text).expect_err("rejected");
        assert!(refused.contains("Cannot modify"), "{refused}");
    }
    call.send().await.expect("the challenge is not used up");
}
