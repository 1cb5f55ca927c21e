//! People who use the product, so that the pages have something to show.

use std::time::Duration;

use postern_tests::http_body::json;
use postern_tests::surface::{self, PASSWORD};
use postern_tests::{Client, Person, PublicApi, Split};

/// How long they use it.
const DURATION: Duration = Duration::from_secs(300);
/// The interval between two of their actions, on average.
const INTERVAL: Duration = Duration::from_millis(60);
const NAMES: [&str; 6] = ["ada", "grace", "alan", "edsger", "barbara", "donald"];
/// Its mail is rejected by the mail catcher.
const BOUNCED: &str = "margaret@bounce.invalid";

/// Registered people, and a service that notifies them.
pub(super) struct People {
    api: PublicApi,
    people: Vec<Person>,
    service: Client,
    bounced_id: String,
}

// === impl People ===

impl People {
    /// Registers them. One has an address that does not receive mail.
    pub(super) async fn register(split: &Split) -> Self {
        let api = split.surface().clone();
        let mut people = Vec::new();
        for name in NAMES {
            people.push(api.register_as(&format!("{name}@example.com")).await);
        }
        let token = split.development().service_token("auth").await;
        let service = api.client().with_token(&token);
        people.push(api.register_as(BOUNCED).await);
        let wrong = json!({"email": BOUNCED, "password": "not this one"});
        let _ = api.client().post_json("/auth/login", &wrong).await;
        sign_in(&api, BOUNCED).await;
        let bounced_id = welcome(&service, BOUNCED).await;
        Self {
            api,
            people,
            service,
            bounced_id,
        }
    }

    /// Returns the address that does not receive mail.
    pub(super) fn bounced_email(&self) -> &'static str {
        BOUNCED
    }

    /// Returns the id of the notification to it.
    pub(super) fn bounced_notification(&self) -> &str {
        &self.bounced_id
    }

    /// Makes requests for some minutes, at a rate that rises and falls.
    pub(super) async fn use_the_product(&self) {
        let end = tokio::time::Instant::now() + DURATION;
        let mut at = 0_u32;
        while tokio::time::Instant::now() < end {
            // Between one and four requests at a time, in waves of about a minute.
            let wave = (f64::from(at) / 160.0).sin().mul_add(1.5, 2.5);
            let mut interval = tokio::time::interval(INTERVAL.div_f64(wave / 2.5));
            interval.tick().await;
            interval.tick().await;
            self.act(at).await;
            at += 1;
        }
    }

    /// Makes this number of requests at once.
    pub(super) async fn make_requests(&self, count: u32) {
        for at in 0..count {
            self.act(at).await;
        }
    }

    /// Makes one request, or what belongs together.
    async fn act(&self, at: u32) {
        let person = &self.people[at as usize % NAMES.len()];
        let client = &person.client;
        match at % 23 {
            0 | 9 => sign_in(&self.api, &person.email).await,
            1 => drop(client.get("/auth/me").send().await),
            5 => {
                let _ = welcome(&self.service, &person.email).await;
            }
            11 => {
                let sms = json!({"channel": "sms", "recipient": {"phone": "+14155550123"},
                    "template": "welcome", "variables": {"name": "Ada"}});
                let _ = self.service.post_json("/notifications", &sms).await;
            }
            13 if at.is_multiple_of(5) => {
                let _ = client.get("/actors/someone-else").send().await;
            }
            17 if at.is_multiple_of(3) => {
                let _ = self.api.client().get("/resumes/1").send().await;
            }
            19 if at.is_multiple_of(4) => {
                let _ = client.get("/resume").send().await;
            }
            7 | 15 => {
                let (content, _) = surface::resume(20_000);
                let form = surface::resume_form(&person.id, &content);
                let _ = client.post("/resumes").multipart(form).send().await;
            }
            _ => {
                let path = format!("/actors/{}", person.id);
                let _ = client.get(&path).send().await;
            }
        }
    }
}

async fn sign_in(api: &PublicApi, email: &str) {
    let body = json!({"email": email, "password": PASSWORD});
    let _ = api.client().post_json("/auth/login", &body).await;
}

/// Sends a welcome message by e-mail, and returns its id.
async fn welcome(service: &Client, email: &str) -> String {
    let body = json!({"channel": "email", "recipient": {"email": email},
        "template": "welcome", "variables": {"name": "Ada"}});
    let accepted = service.posted("/notifications", &body, 201).await;
    accepted.string("/notificationId")
}
