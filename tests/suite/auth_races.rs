//! The same request at two replicas at once. `POSTERN_TEST_RACES` sets the number of repetitions
//! (default 5; 200 take ten minutes).

use futures_util::StreamExt;
use futures_util::stream;
use postern_harness::json;
use postern_harness::pools::subject;
use postern_harness::public_api::{PASSWORD, credentials, landed, text};
use postern_harness::wait::answer;
use postern_harness::{Answer, note};
use serde_json::Value;

use crate::auth_cluster::{AuthCluster, Changes, Replica};
use crate::notify_order::env_number;

/// Repetitions in progress. Unoptimized password hashes of more of them outlast the deadline of a call.
const PARALLEL: usize = 2;

/// A request that is sent twice: its path, the status of the winners, their number, and the answer
/// of the others.
type Race = (&'static str, u16, usize, (u16, &'static str));

const REGISTER: Race = ("/auth/register", 201, 1, (422, "email_not_available"));
/// As by a double click: the code has one winner, and the password lets the other one in.
const CONFIRM: Race = ("/auth/register/confirm", 201, 2, (422, "invalid_code"));
const RESET: Race = ("/auth/password/reset", 204, 1, (422, "invalid_code"));
const EXCHANGE: Race = (
    "/auth/tokens/exchange",
    200,
    1,
    (401, "invalid_temporary_token"),
);
/// The pool's grace period lets a second tab refresh as well.
const REFRESH: Race = (
    "/auth/tokens/refresh",
    200,
    2,
    (401, "invalid_refresh_token"),
);

/// Two replicas in which the address of a registration needs no proof, and two in which it does.
struct Pairs {
    cluster: AuthCluster,
    plain: [Replica; 2],
    confirming: [Replica; 2],
}

impl Pairs {
    async fn start() -> Self {
        let cluster = AuthCluster::start().await;
        let pair = async |confirm| {
            let changes = Changes {
                confirm,
                ..Changes::default()
            };
            cluster.pair(&changes).await
        };
        Self {
            plain: pair(None).await,
            confirming: pair(Some("code")).await,
            cluster,
        }
    }

    /// Returns the code in the last mail to an address.
    async fn code(&self, email: &str) -> String {
        self.cluster.surface.mailbox().code(email).await
    }

    /// Waits for a mail with another code.
    async fn code_after(&self, email: &str, last: &str) -> String {
        answer(async || match self.code(email).await {
            code if code != last => Ok(code),
            _ => Err(format!("no other code than {last}")),
        })
        .await
    }

    async fn ask_for_reset(&self, email: &str) {
        let body = json!({"email": email});
        let asked = answered(&self.plain[0], "/auth/password/forgot", &body).await;
        let _ = asked.expect(204);
    }

    /// Signs in at a provider without authority for the address, and returns the session that waits
    /// for the code.
    async fn social_session(&self, email: &str) -> Value {
        let who = [("person", "other"), ("name", "Sue"), ("email", email)];
        let replica = &self.plain[0];
        let token = replica.surface.social_sign_in(&who, None).await;
        let body = json!({"temporaryToken": token.expect("a token")});
        let asked = answered(replica, "/auth/tokens/exchange", &body).await;
        let asked = asked.expect(401).json();
        assert_eq!(asked["challenge"]["name"], "CONFIRM_ADDRESS");
        asked["challenge"]["session"].clone()
    }

    /// Somebody who has read a code enters it while the owner resets the password.
    async fn reset_and_link(&self, number: usize) {
        let [one, two] = &self.plain;
        let email = format!("l{number}@elsewhere.org");
        let body = credentials(&email);
        let _ = answered(one, "/auth/register", &body).await.expect(201);
        let set = |code: &str| {
            let body = json!({"email": email, "code": code, "newPassword": PASSWORD});
            async move { answered(two, RESET.0, &body).await.expect(204) }
        };
        self.ask_for_reset(&email).await;
        let first = self.code(&email).await;
        let _ = set(&first).await;
        let session = self.social_session(&email).await;
        let link = self.code_after(&email, &first).await;
        self.ask_for_reset(&email).await;
        let reset = self.code_after(&email, &link).await;
        let body = json!({"session": session, "code": link});
        let (linked, _) = tokio::join!(answered(one, "/auth/challenge", &body), set(&reset));
        if linked.status == 200 {
            let body = json!({"refreshToken": text(&linked.json(), "refreshToken")});
            let refused = answered(two, "/auth/tokens/refresh", &body).await;
            let _ = refused.problem(401, "invalid_refresh_token");
        } else {
            let _ = linked.problem(401, "invalid_challenge");
        }
        self.social_session(&email).await;
    }

    /// The owner of an address confirms it while somebody else registers it.
    async fn confirm_and_replace(&self, number: usize) {
        let [one, two] = &self.confirming;
        let email = format!("p{number}@example.com");
        let [own, other] =
            ["", "+"].map(|end| json!({"email": email, "password": format!("{PASSWORD}{end}")}));
        let asked = answered(one, "/auth/register", &own).await;
        let asked = asked.expect(401).json();
        let (session, code) = (&asked["challenge"]["session"], self.code(&email).await);
        let body = json!({"session": session, "code": code, "password": PASSWORD});
        let (confirmed, replaced) = tokio::join!(
            answered(one, "/auth/register/confirm", &body),
            answered(two, "/auth/register", &other)
        );
        if confirmed.status == 201 {
            let _ = replaced.problem(422, "email_not_available");
            let _ = answered(two, "/auth/login", &own).await.expect(200);
            let refused = answered(two, "/auth/login", &other).await;
            let _ = refused.problem(401, "invalid_credentials");
        } else {
            let _ = confirmed.problem(422, "invalid_code");
            let _ = replaced.problem(401, "challenge_required");
        }
    }

    async fn register_and_reset(&self, number: usize) {
        let email = format!("r{number}@example.com");
        let bodies =
            ["", "+"].map(|end| json!({"email": email, "password": format!("{PASSWORD}{end}")}));
        win(&REGISTER, &self.plain, &bodies).await;
        self.ask_for_reset(&email).await;
        let code = self.code(&email).await;
        let bodies = ["1", "2"].map(
            |end| json!({"email": email, "code": code, "newPassword": format!("{PASSWORD}{end}")}),
        );
        let (_, winner) = win(&RESET, &self.plain, &bodies).await;
        let login = json!({"email": email, "password": bodies[winner]["newPassword"]});
        let signed_in = answered(&self.plain[1 - winner], "/auth/login", &login).await;
        let _ = signed_in.expect(200);
    }

    async fn confirm(&self, number: usize) {
        let email = format!("c{number}@example.com");
        let body = credentials(&email);
        let asked = answered(&self.confirming[number % 2], "/auth/register", &body).await;
        let asked = asked.expect(401).json();
        let (session, code) = (&asked["challenge"]["session"], self.code(&email).await);
        let body = json!({"session": session, "code": code, "password": PASSWORD});
        win(&CONFIRM, &self.confirming, &[body.clone(), body]).await;
    }

    async fn sign_in_socially(&self, number: usize) {
        let email = format!("s{number}@example.com");
        let who = [
            ("person", "other"),
            ("name", "Sue"),
            ("email", &*email),
            ("email_verified", "true"),
        ];
        let replica = &self.plain[number % 2];
        let path = replica.surface.social_callback(&who, None).await;
        let [one, two] = &self.plain;
        let callback =
            async |replica: &Replica| landed(&replica.surface.client().get(&path).send().await);
        let landed = tokio::join!(callback(one), callback(two));
        let ((Ok(token), Err(error)) | (Err(error), Ok(token))) = landed else {
            // The state is used up, and the pool was too busy for its sign-in.
            let busy = "temporarily_unavailable";
            let is_busy = matches!(&landed, (Err(one), Err(two)) if one == busy || two == busy);
            assert!(is_busy, "the callback has one winner: {landed:?}");
            return;
        };
        assert_eq!(error, "invalid_state");
        let body = json!({"temporaryToken": token});
        let (won, _) = win(&EXCHANGE, &self.plain, &[body.clone(), body]).await;
        let body = json!({"refreshToken": text(&won["tokens"], "refreshToken")});
        win(&REFRESH, &self.plain, &[body.clone(), body]).await;
    }
}

/// Sends a request, again while the pool is too busy for it.
async fn answered(replica: &Replica, path: &str, body: &Value) -> Answer {
    loop {
        let answer = replica.post(path, body).await;
        if answer.status != 503 {
            return answer;
        }
    }
}

/// Sends both bodies at once, and returns the answer of a winner and its index. All winners are one
/// user.
async fn win(race: &Race, [one, two]: &[Replica; 2], bodies: &[Value; 2]) -> (Value, usize) {
    let (path, status, count, (lost, code)) = race;
    let answers = tokio::join!(
        answered(one, path, &bodies[0]),
        answered(two, path, &bodies[1])
    );
    let mut winners = Vec::new();
    for (index, answer) in [answers.0, answers.1].into_iter().enumerate() {
        if answer.status != *status {
            let _ = answer.problem(*lost, code);
        } else if *status == 204 {
            winners.push((Value::Null, index));
        } else {
            winners.push((answer.json(), index));
        }
    }
    assert_eq!(winners.len(), *count, "{path}: winners");
    let mut subjects: Vec<_> = winners.iter().map(|(won, _)| subject_of(won)).collect();
    subjects.dedup();
    assert_eq!(subjects.len(), 1, "{path}: {subjects:?}");
    winners.remove(0)
}

/// Returns the subject of the tokens in an answer, if there are any.
fn subject_of(answer: &Value) -> Option<String> {
    let tokens = answer.get("tokens").unwrap_or(answer);
    tokens["accessToken"].as_str().map(subject)
}

#[tokio::test]
async fn what_may_happen_once_has_one_winner_at_two_replicas() {
    let pairs = Pairs::start().await;
    let races = env_number("POSTERN_TEST_RACES", 5);
    let began = std::time::Instant::now();
    let all = stream::iter(0..races).for_each_concurrent(PARALLEL, |number| {
        let pairs = &pairs;
        async move {
            pairs.register_and_reset(number).await;
            pairs.confirm(number).await;
            pairs.sign_in_socially(number).await;
            pairs.reset_and_link(number).await;
            pairs.confirm_and_replace(number).await;
        }
    });
    all.await;
    note(&format!(
        "auth: {races} races each of register, confirm, reset, callback, exchange, refresh, link and replacement in {} s",
        began.elapsed().as_secs()
    ));
    for replica in pairs.plain.into_iter().chain(pairs.confirming) {
        let _ = replica.running.stop("TERM").await;
    }
}
