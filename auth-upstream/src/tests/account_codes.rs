//! Codes of the service's own, and accounts whose address nobody has proven.

use std::time::Duration;

use postern_core::{Clock, Code, Problem};
use postern_store::database::testing::postgres;
use serde_json::{Value, json};

use crate::flows::{CodePurpose, RegistrationRequest, TokenSet};
use crate::testing::browser;
use crate::testing::{
    ADA, Fault, Fixture, PASSWORD, client, client_at, email, http, land, plain, refused, register,
    registration, session_of,
};

pub(super) const REGISTER: &str = "/actors/register";
const CONFIRM: &str = "account-confirm";
pub(super) const RESET: &str = "account-reset";
pub(super) const NOTICE: &str = "account-notice";
/// Longer than every code and every pending registration is kept.
pub(super) const DAY: Duration = Duration::from_secs(86_401);

pub(super) async fn redeem(
    fixture: &Fixture,
    purpose: CodePurpose,
    address: &str,
    code: &str,
) -> Result<(), Code> {
    let address = email(address);
    let redeemed = fixture.flows().redeem_code(purpose, &address, code);
    redeemed.await.map(drop).map_err(|problem| problem.code())
}

pub(super) async fn send(fixture: &Fixture, purpose: CodePurpose, address: &str) -> String {
    let (email, client) = (email(address), client());
    let issued = fixture.flows().issue_code(purpose, &email, &client);
    issued.await.expect("sent");
    let template = if purpose == CodePurpose::Reset {
        RESET
    } else {
        CONFIRM
    };
    fixture.code(address, template)
}

/// Registers Ada's address and returns the session that awaits the code.
async fn start_registration(fixture: &Fixture, password: &str, name: &str) -> String {
    let mut request = registration(ADA, password);
    request.profile.insert("firstName".to_owned(), name.into());
    let asked = try_register(fixture, &request).await;
    session_of(&asked.expect_err("a code is required"))
}

async fn try_register(
    fixture: &Fixture,
    request: &RegistrationRequest,
) -> Result<TokenSet, Problem> {
    plain(fixture.flows().register(&client(), request).await)
}

async fn confirmed(fixture: &Fixture, session: &str, code: &str) {
    let confirmed = fixture.confirm(&client(), session, code, PASSWORD).await;
    confirmed.expect("registered");
}

/// Returns the profiles that were sent to the actor service.
fn profiles(fixture: &Fixture) -> Vec<Value> {
    let sent = fixture.bodies(REGISTER).into_iter();
    sent.map(|body| body["profile"].clone()).collect()
}

/// The profile of a person who has entered a code from a mail.
fn proven_profile() -> Value {
    json!({ "firstName": "Ada", "emailVerified": true })
}

pub(super) async fn is_verified(fixture: &Fixture) -> bool {
    let user = fixture
        .pool()
        .call("AdminGetUser", json!({ "Username": ADA }));
    let user = user.await.expect("a user");
    let verified = json!({ "Name": "email_verified", "Value": "true" });
    user["UserAttributes"]
        .as_array()
        .is_some_and(|all| all.contains(&verified))
}

#[tokio::test]
async fn code_is_bound_to_purpose_address_time_and_use() {
    let fixture = Fixture::new().await;
    let purpose = CodePurpose::Reset;
    let code = send(&fixture, purpose, ADA).await;
    assert!(
        code.len() == 8 && code.bytes().all(|byte| byte.is_ascii_digit()),
        "{code}"
    );
    let message = &fixture.messages(ADA, RESET)[0];
    assert_eq!(
        (&message["priority"], &message["expiresAt"]),
        (&json!("CRITICAL"), &json!("2026-11-20T08:30:00.000Z"))
    );
    let entries = format!("{:?}", fixture.service.cache);
    assert!(!entries.contains(&code), "{entries}");
    let invalid = Err(Code::InvalidCode);
    let (right, wrong) = (
        code.as_str(),
        if code == "00000000" { "1" } else { "00000000" },
    );
    for (purpose, address, code, expected) in [
        (CodePurpose::Confirmation, ADA, right, invalid),
        (CodePurpose::SocialLink, ADA, right, invalid),
        (purpose, "bob@example.com", right, invalid),
        (purpose, ADA, wrong, invalid),
        (purpose, "ADA@example.com", right, Ok(())),
        (purpose, ADA, right, invalid),
    ] {
        let redeemed = redeem(&fixture, purpose, address, code).await;
        assert_eq!(redeemed, expected, "{purpose:?} {address} {code}");
    }
    let old = send(&fixture, purpose, ADA).await;
    let code = send(&fixture, purpose, ADA).await;
    if old != code {
        assert_eq!(
            redeem(&fixture, purpose, ADA, &old).await,
            invalid,
            "replaced"
        );
    }
    fixture.clock.advance(Duration::from_secs(3600));
    assert_eq!(
        redeem(&fixture, purpose, ADA, &code).await,
        invalid,
        "expired"
    );
}

#[tokio::test]
async fn guesses_of_others_do_not_use_up_a_code() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    let guess_at = async |address: String| {
        let client = client_at(&address);
        let guessed = fixture.try_reset(&client, "wrong", "Password-2");
        refused(guessed.await, Code::InvalidCode);
    };
    let guess = async |network: u8| guess_at(format!("198.51.{network}.1")).await;
    for network in 0..80 {
        guess(network % 10).await;
        // A customer with a /48 of IPv6 has one network.
        guess_at(format!("2001:db8:1:{network}::1")).await;
    }
    let owner = client_at("192.0.2.1");
    let done = fixture.try_reset(&owner, &code, "Password-2").await;
    done.expect("not locked out");
    // A hundred networks void a code, not the next one.
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    for network in 100..200 {
        guess(network).await;
    }
    refused(
        fixture.try_reset(&owner, &code, "Password-2").await,
        Code::InvalidCode,
    );
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    let done = fixture.try_reset(&owner, &code, "Password-2").await;
    done.expect("a new code");
}

#[tokio::test]
async fn refused_password_uses_up_no_code() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    fixture.request_code(ADA).await;
    let code = fixture.code(ADA, RESET);
    for (password, expected) in [
        ("short", Err(Code::WeakPassword)),
        ("Password-2", Ok(())),
        ("Password-2", Err(Code::InvalidCode)),
    ] {
        let done = fixture.try_reset(&client(), &code, password).await;
        assert_eq!(done.map_err(|problem| problem.code()), expected);
    }
}

#[tokio::test]
async fn codes_fail_honestly_without_the_notification_service() {
    let fixture = Fixture::with_confirmation().await;
    fixture.inject("/notifications", 4, Fault::status(503));
    let problem = refused(fixture.register(PASSWORD).await, Code::Unavailable);
    assert!(problem.render("id").headers.contains_key("retry-after"));
    fixture.request_code(ADA).await;
    assert!(fixture.count("/notifications") == 4, "each is tried twice");
    let session = start_registration(&fixture, PASSWORD, "Ada").await;
    let code = fixture.code(ADA, CONFIRM);
    confirmed(&fixture, &session, &code).await;
}

#[tokio::test]
async fn unconfirmed_registration_is_replaced_by_the_next_one() {
    let fixture = Fixture::with_confirmation().await;
    start_registration(&fixture, "Password-0", "Eve").await;
    let stranger = fixture.pool().subject(ADA).await;
    let session = start_registration(&fixture, PASSWORD, "Ada").await;
    assert_ne!(fixture.pool().subject(ADA).await, stranger);
    let code = fixture.code(ADA, CONFIRM);
    confirmed(&fixture, &session, &code).await;
    fixture.sign_in(PASSWORD).await.expect("signed in");
    fixture.sign_in("Password-0").await.expect_err("replaced");
    assert_eq!(profiles(&fixture), [proven_profile()]);
    assert!(is_verified(&fixture).await);
    refused(
        register(&fixture.service, &client(), ADA, "Password-0").await,
        Code::EmailNotAvailable,
    );
}

#[tokio::test]
async fn code_confirms_the_registration_of_its_owner() {
    let fixture = Fixture::with_confirmation().await;
    let session = start_registration(&fixture, PASSWORD, "Ada").await;
    // Another person registers the address before its owner has read the mail.
    let other = start_registration(&fixture, "Password-0", "Eve").await;
    let code = fixture.code(ADA, CONFIRM);
    let client = client();
    let intrude = async |code: &str| fixture.confirm(&client, &other, code, "Password-0").await;
    refused(intrude("00000000").await, Code::InvalidCode);
    confirmed(&fixture, &session, &code).await;
    refused(intrude(&code).await, Code::InvalidCredentials);
    assert_eq!(profiles(&fixture), [proven_profile()]);
    fixture.clock.advance(DAY);
    fixture.compensate().await;
    fixture.sign_in(PASSWORD).await.expect("still there");
}

#[tokio::test]
async fn repeated_registrations_send_few_codes_and_keep_the_last_one() {
    let fixture = Fixture::with_confirmation().await;
    for _ in 0..10 {
        start_registration(&fixture, "Password-0", "Eve").await;
        // Those of another purpose count by themselves.
        fixture.request_code(ADA).await;
    }
    let session = start_registration(&fixture, PASSWORD, "Ada").await;
    assert_eq!(fixture.messages(ADA, CONFIRM).len(), 6);
    let code = fixture.code(ADA, CONFIRM);
    confirmed(&fixture, &session, &code).await;
}

#[tokio::test]
async fn unconfirmed_user_expires_by_the_clock_of_the_database() {
    let database = postgres().await;
    database.set_clock(-25 * 3600).await;
    let fixture = Fixture::with(|it| {
        it.config = "confirm = 'code'";
        it.database = Some(database);
        it.clock = Some(Clock::system());
    })
    .await;
    start_registration(&fixture, PASSWORD, "Ada").await;
    assert_eq!(fixture.pending_registrations().await, 0, "not interrupted");
    // This machine is a day ahead of the others, and then the database is.
    for ahead_s in [-25 * 3600, 25 * 3600] {
        fixture.database.set_clock(ahead_s).await;
        assert_eq!(fixture.compensate().await, 0, "{ahead_s}");
        assert!(fixture.pool().subject(ADA).await.is_some(), "{ahead_s}");
    }
    // Both are right, a day after the registration.
    fixture.database.set_clock(0).await;
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool().subject(ADA).await.is_none());
}

#[tokio::test]
async fn profile_is_kept_until_it_is_saved() {
    let fixture = Fixture::with_confirmation().await;
    let mut request = registration(ADA, PASSWORD);
    for field in 0..30 {
        request
            .profile
            .insert(format!("field{field}"), "\"".repeat(1000).into());
    }
    let asked = try_register(&fixture, &request).await.expect_err("a code");
    assert!(
        session_of(&asked).len() < 1024,
        "the session does not carry the profile"
    );
    // The page was closed: the session of a sign-in has the same profile.
    let asked = fixture.sign_in(PASSWORD).await.expect_err("a code");
    fixture.inject(REGISTER, 3, Fault::status(503));
    let (session, code) = (session_of(&asked), fixture.code(ADA, CONFIRM));
    refused(
        fixture.confirm(&client(), &session, &code, PASSWORD).await,
        Code::Unavailable,
    );
    fixture.sign_in(PASSWORD).await.expect("confirmed");
    assert_eq!(fixture.compensate().await, 1);
    let mut expected = Value::Object(request.profile);
    expected["emailVerified"] = true.into();
    assert_eq!(profiles(&fixture), vec![expected; 4]);
    confirmed(&fixture, &session, &code).await;
    assert_eq!(profiles(&fixture).len(), 4, "not overwritten");
}

#[tokio::test]
async fn owner_is_told_of_resets_and_new_networks() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let events = async |count: usize| {
        let sent = async {
            while fixture.messages(ADA, NOTICE).len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let sent = tokio::time::timeout(Duration::from_secs(30), sent).await;
        sent.expect("a notice");
        let messages = fixture.messages(ADA, NOTICE).into_iter();
        let events = messages.map(|body| body["variables"]["event"].clone());
        events.collect::<Vec<Value>>()
    };
    let sign_in = async |address: &str, password: &str| {
        let signed_in = fixture.sign_in_at(address, password).await;
        signed_in.expect("signed in");
    };
    sign_in("192.0.2.1", PASSWORD).await;
    sign_in("192.0.2.9", PASSWORD).await;
    sign_in("198.51.100.1", PASSWORD).await;
    assert_eq!(events(1).await, ["new_network"], "not of the first sign-in");
    sign_in("198.51.100.2", PASSWORD).await;
    fixture.reset("192.0.2.1", "Password-2").await;
    assert_eq!(events(2).await, ["new_network", "password_changed"]);
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let asked = fixture.sign_in("Temporary-1").await;
    let session = session_of(&asked.expect_err("a challenge"));
    let answered = fixture.answer(&client(), session, Err("Password-2")).await;
    answered.expect("signed in");
    assert_eq!(events(3).await[2], "password_changed");
    // A social sign-in trusts its network as well.
    for address in ["198.51.100.1", "198.51.100.2"] {
        let back = browser::callback(&fixture).await;
        let landing = land(&fixture.service, &client_at(address), back).await;
        assert_eq!(landing.name, "temporaryToken");
    }
    assert_eq!(events(5).await[3..], ["social_link", "new_network"]);
    let message = fixture.messages(ADA, NOTICE).remove(0);
    assert_eq!(message["priority"], "HIGH");
    // A sign-in does not depend on the message.
    fixture.clock.advance(DAY);
    fixture.inject("/notifications", 2, Fault::Silence);
    sign_in("203.0.113.1", "Password-2").await;

    let fixture = Fixture::with_config("notices = false").await;
    fixture.add_ada().await;
    fixture.reset("192.0.2.1", "Password-2").await;
    assert!(fixture.messages(ADA, NOTICE).is_empty());
}

#[tokio::test]
async fn message_has_the_language_of_the_person() {
    let fixture = Fixture::with_confirmation().await;
    let url = fixture.serve().await;
    for (header, own, locale) in [
        ("de-AT,de;q=0.9,en;q=0.8", None, json!("de-AT")),
        ("*", None, Value::Null),
        ("x-klingon", Some("x"), Value::Null),
        ("de", Some("fr-CH"), json!("fr-CH")),
    ] {
        fixture.clock.advance(Duration::from_millis(1));
        let profile = own.map_or_else(|| json!({}), |own| json!({ "locale": own }));
        let body = json!({ "email": ADA, "password": PASSWORD, "profile": profile });
        let request = http().post(format!("{url}/auth/register")).json(&body);
        let answer = request.header("accept-language", header).send().await;
        assert_eq!(answer.expect("an answer").status(), 401, "{header}");
        let message = fixture.messages(ADA, CONFIRM).pop().expect("a message");
        assert_eq!(message["locale"], locale, "{header}");
    }
    // The profile of the last one, whoever asks.
    let asked = fixture.sign_in(PASSWORD).await.expect_err("a code");
    let (session, code) = (session_of(&asked), fixture.code(ADA, CONFIRM));
    confirmed(&fixture, &session, &code).await;
    fixture.request_code(ADA).await;
    assert_eq!(fixture.messages(ADA, RESET)[0]["locale"], "fr-CH");
}
