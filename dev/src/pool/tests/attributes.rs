//! Tests of reading and writing user attributes.

use aws_sdk_cognitoidentityprovider::types::AttributeType;

use super::harness::{EMAIL, PASSWORD, claims, error_text, start};

fn attribute(name: &str, value: &str) -> AttributeType {
    AttributeType::builder()
        .name(name)
        .value(value)
        .build()
        .expect("an attribute")
}

#[tokio::test]
async fn attribute_access_follows_client_settings() {
    let pool = start().await;
    let actor = pool.actor();
    let create = |attributes| {
        let call = pool.admin.admin_create_user().username(EMAIL);
        let call = call
            .user_pool_id(&actor.pool_id)
            .message_action("SUPPRESS".into());
        let call = call.set_user_attributes(Some(attributes));
        async move { call.send().await.map_err(error_text) }
    };
    let unknown = create(vec![attribute("custom:service_id", "auth")]).await;
    let unknown = unknown.expect_err("rejected");
    assert!(
        unknown.contains("does not exist in the schema"),
        "{unknown}"
    );
    let given = vec![
        attribute("given_name", "Ada"),
        attribute("email_verified", "true"),
    ];
    create(given).await.expect("created");
    pool.set_password(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let id_claims = claims(tokens.id_token().expect("ID token"));
    assert_eq!(
        (&id_claims["given_name"], &id_claims["email_verified"]),
        (&"Ada".into(), &true.into())
    );
    let user = pool.get_user(&tokens).await.expect("read");
    let mut read = user.user_attributes().iter();
    assert!(read.any(|read| (read.name(), read.value()) == ("given_name", Some("Ada"))));
    let sign_up = pool.anonymous.sign_up().client_id(&actor.client_id);
    let sign_up = sign_up.username("eve@example.com").password(PASSWORD);
    let sign_up = sign_up.set_secret_hash(actor.secret_hash("eve@example.com"));
    let verified = sign_up.user_attributes(attribute("email_verified", "true"));
    let rejected = verified
        .send()
        .await
        .map_err(error_text)
        .expect_err("rejected");
    assert!(rejected.contains("unauthorized attribute"), "{rejected}");
}
