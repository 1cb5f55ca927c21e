use std::sync::atomic::Ordering;
use std::time::Duration;

use super::harness::{EMAIL, PASSWORD, claims, error_text, start};

const NEW_PASSWORD: &str = "Fresher-Horse-8";

#[tokio::test]
async fn password_reset_uses_code_once_and_revokes_sign_ins() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    assert_eq!(pool.forgot(EMAIL).await.expect("sent"), "a***@e***");
    let mail = pool.codes.recv().await.expect("a mail");
    let code = mail.code.expose();
    let weak = pool
        .confirm_forgot(EMAIL, code, "weak")
        .await
        .expect_err("rejected");
    assert!(weak.starts_with("InvalidPasswordException"), "{weak}");
    pool.confirm_forgot(EMAIL, code, NEW_PASSWORD)
        .await
        .expect("reset");
    let again = pool
        .confirm_forgot(EMAIL, code, PASSWORD)
        .await
        .expect_err("used");
    assert!(again.starts_with("ExpiredCodeException"), "{again}");
    assert!(pool.sign_in(EMAIL, PASSWORD).await.is_err());
    let fresh = pool.sign_in(EMAIL, NEW_PASSWORD).await.expect("signed in");
    assert_eq!(
        claims(fresh.id_token().expect("ID token"))["email_verified"],
        true
    );
    assert!(
        pool.get_user(&tokens).await.is_err(),
        "sign-ins are revoked"
    );
}

#[tokio::test]
async fn forgot_password_for_unknown_address_sends_no_mail() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    assert_eq!(
        pool.forgot("anna@elsewhere.org").await.expect("answered"),
        "a***@e***"
    );
    let wrong = pool
        .confirm_forgot("anna@elsewhere.org", "000000", NEW_PASSWORD)
        .await
        .expect_err("rejected");
    assert!(wrong.starts_with("CodeMismatchException"), "{wrong}");
    assert!(pool.codes.try_recv().is_err(), "no mail");
    pool.forgot(EMAIL).await.expect("sent");
    pool.codes.recv().await.expect("a mail");
}

#[tokio::test]
async fn code_expires_after_five_wrong_attempts_or_one_hour() {
    let mut pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    pool.forgot(EMAIL).await.expect("sent");
    let code = pool.codes.recv().await.expect("a mail").code;
    let wrong = if code.expose() == "000000" {
        "000001"
    } else {
        "000000"
    };
    for _ in 0..5 {
        let refused = pool
            .confirm_forgot(EMAIL, wrong, NEW_PASSWORD)
            .await
            .expect_err("wrong");
        assert!(refused.starts_with("CodeMismatchException"), "{refused}");
    }
    pool.confirm_forgot(EMAIL, wrong, NEW_PASSWORD)
        .await
        .expect_err("the sixth");
    let dead = pool
        .confirm_forgot(EMAIL, code.expose(), NEW_PASSWORD)
        .await
        .expect_err("an expired code");
    assert!(dead.starts_with("LimitExceededException"), "{dead}");
    pool.forgot(EMAIL).await.expect("sent again");
    let code = pool.codes.recv().await.expect("a mail").code;
    pool.clock.advance(Duration::from_secs(3601));
    let late = pool
        .confirm_forgot(EMAIL, code.expose(), NEW_PASSWORD)
        .await
        .expect_err("late");
    assert!(late.starts_with("ExpiredCodeException"), "{late}");
}

#[tokio::test]
async fn temporary_password_and_challenge_session_expire() {
    let pool = start().await;
    let actor = pool.actor();
    pool.create_user(EMAIL, Some(PASSWORD)).await;
    let asked = pool.initiate(actor, EMAIL, PASSWORD).await.expect("asked");
    pool.clock.advance(Duration::from_secs(181));
    let late = pool
        .replace_password(&asked, EMAIL, EMAIL, NEW_PASSWORD)
        .await;
    let late = late.expect_err("late");
    assert!(late.contains("session is expired"), "{late}");
    pool.clock.advance(Duration::from_secs(7 * 86_400));
    let late = pool.sign_in(EMAIL, PASSWORD).await.expect_err("late");
    assert!(late.contains("Temporary password has expired"), "{late}");
}

#[tokio::test]
async fn signed_in_user_changes_password() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let change = |from: &str, to: &str| {
        let call = pool
            .anonymous
            .change_password()
            .access_token(tokens.access_token().expect("access token"));
        let call = call.previous_password(from).proposed_password(to);
        async move { call.send().await.map_err(error_text) }
    };
    let wrong = change("Wrong-Horse-9", NEW_PASSWORD)
        .await
        .expect_err("wrong");
    assert!(wrong.starts_with("NotAuthorizedException"), "{wrong}");
    change(PASSWORD, NEW_PASSWORD).await.expect("changed");
    assert!(pool.sign_in(EMAIL, NEW_PASSWORD).await.is_ok());
}

#[tokio::test]
async fn wrong_password_costs_one_hash_for_any_user() {
    let pool = start().await;
    let actor = pool.actor().clone();
    pool.register("known@example.com", PASSWORD).await;
    pool.register("disabled@example.com", PASSWORD).await;
    pool.set_enabled("disabled@example.com", false).await;
    let sign_up = pool
        .anonymous
        .sign_up()
        .client_id(&actor.client_id)
        .username("new@example.com");
    let sign_up = sign_up
        .password(PASSWORD)
        .set_secret_hash(actor.secret_hash("new@example.com"));
    sign_up.send().await.expect("signed up");
    // As a social sign-in creates them: before and after the first tokens.
    for name in ["social@example.com", "fresh@example.com"] {
        pool.create_user(name, None).await;
    }
    pool.set_password("social@example.com", "Random-Horse-7")
        .await;
    let mut refusals = std::collections::BTreeSet::new();
    for name in ["known", "unknown", "disabled", "new", "social", "fresh"] {
        let before = pool.hashes.load(Ordering::Relaxed);
        let refused = pool
            .sign_in(&format!("{name}@example.com"), "Wrong-Horse-9")
            .await;
        refusals.insert(refused.expect_err("wrong"));
        assert_eq!(pool.hashes.load(Ordering::Relaxed), before + 1, "{name}");
    }
    assert_eq!(refusals.len(), 1, "{refusals:?}");
}
