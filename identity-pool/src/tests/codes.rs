use aws_sdk_cognitoidentityprovider::types::AttributeType;

use super::harness::{EMAIL, PASSWORD, over_both, refusal};

#[tokio::test]
async fn a_code_proves_no_other_address_than_the_one_it_was_sent_to() {
    over_both(|mut pool| async move {
        pool.register(EMAIL, PASSWORD).await;
        let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
        let access = tokens.access_token().expect("access token");
        let send = pool.anonymous.get_user_attribute_verification_code().access_token(access);
        send.attribute_name("email").send().await.expect("sent");
        let code = pool.codes.recv().await.expect("a code").code;
        let victim = AttributeType::builder().name("email").value("victim@example.com").build();
        let change = pool.anonymous.update_user_attributes().access_token(access);
        change.user_attributes(victim.expect("an attribute")).send().await.expect("changed");
        let verify = || {
            let call = pool.anonymous.verify_user_attribute().access_token(access);
            call.attribute_name("email").code(code.expose()).send()
        };
        let refused = verify().await.map_err(refusal).expect_err("another address");
        assert!(refused.starts_with("CodeMismatchException"), "{refused}");
        let back = AttributeType::builder().name("email").value(EMAIL).build().expect("an attribute");
        let change = pool.anonymous.update_user_attributes().access_token(access);
        change.user_attributes(back).send().await.expect("changed");
        verify().await.expect("the address that it was sent to");
        let user = pool.anonymous.get_user().access_token(access).send().await.expect("read");
        let verified = user.user_attributes().iter().find(|attribute| attribute.name() == "email_verified");
        assert_eq!(verified.and_then(|attribute| attribute.value()), Some("true"));
    })
    .await;
}

#[tokio::test]
async fn a_name_gets_ten_codes_an_hour_known_or_not() {
    over_both(|pool| async move {
        pool.register(EMAIL, PASSWORD).await;
        let actor = pool.actor();
        for name in [EMAIL, "nobody@example.com"] {
            let forgot = || {
                let call = pool.anonymous.forgot_password().client_id(&actor.client_id).username(name);
                call.set_secret_hash(actor.secret_hash(name)).send()
            };
            for _ in 0..10 {
                forgot().await.expect("sent");
            }
            let refused = forgot().await.map_err(refusal).expect_err("the eleventh");
            assert!(refused.starts_with("LimitExceededException"), "{refused}");
            pool.clock.advance(std::time::Duration::from_secs(3601));
            forgot().await.expect("an hour later");
        }
    })
    .await;
}
