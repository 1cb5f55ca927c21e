//! People who register, sign in and refresh their tokens through the gateways.

use std::borrow::Cow;

use serde_json::{Value, json};
use url::{Position, Url};

use super::history::NO_RESPONSE;
use crate::client::Request;
use crate::public_api::PASSWORD;
use crate::{Answer, Client};

/// A response, or its absence.
pub(super) struct Outcome {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// A registered person with a token set.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) email: String,
    pub(super) id: String,
    pub(super) access_token: String,
    pub(super) refresh_token: String,
}

impl Outcome {
    /// Sends a request.
    pub(super) async fn of(request: Request) -> Self {
        let answer = request.try_send().await;
        let status = answer
            .as_ref()
            .map_or(NO_RESPONSE, |answer| answer.status.as_u16());
        let body = answer.and_then(|answer| serde_json::from_slice(&answer.body).ok());
        Self {
            status,
            body: body.unwrap_or_default(),
        }
    }

    /// Returns a string of the body, by pointer.
    pub(super) fn text(&self, pointer: &str) -> Option<String> {
        self.body.pointer(pointer)?.as_str().map(str::to_owned)
    }
}

impl Account {
    /// Registers a person.
    pub(super) async fn register(client: &Client) -> Option<Self> {
        let email = format!("{}@example.com", uuid::Uuid::new_v4().simple());
        let body = json!({"email": email, "password": PASSWORD, "profile": {"firstName": "Ada"}});
        let tokens = Outcome::of(client.post("/auth/register").json(&body)).await;
        let access_token = tokens.text("/accessToken")?;
        let refresh_token = tokens.text("/refreshToken")?;
        let own = Outcome::of(client.with_token(&access_token).get("/auth/me")).await;
        Some(Self {
            email,
            id: own.text("/userId")?,
            access_token,
            refresh_token,
        })
    }

    /// Signs the person in again.
    pub(super) async fn sign_in(&mut self, client: &Client) -> u16 {
        let body = json!({"email": self.email, "password": PASSWORD});
        let tokens = Outcome::of(client.post("/auth/login").json(&body)).await;
        if let (Some(access), Some(refresh)) =
            (tokens.text("/accessToken"), tokens.text("/refreshToken"))
        {
            self.access_token = access;
            self.refresh_token = refresh;
        }
        tokens.status
    }
}

/// Signs a sample person in at the social provider and returns the temporary token.
pub(super) async fn temporary_token(client: &Client) -> Option<String> {
    let begun = client.get("/auth/social/login").try_send().await?;
    let asked = location(&begun)?;
    let provider = Client::new(&asked.origin().ascii_serialization());
    let ada = ("person".into(), "ada".into());
    let form: Vec<(Cow<'_, str>, Cow<'_, str>)> = asked.query_pairs().chain([ada]).collect();
    let chosen = provider.post(asked.path()).form(&form).try_send().await?;
    let back = location(&chosen)?;
    let path = &back[Position::BeforePath..Position::AfterQuery];
    let landed = location(&client.get(path).try_send().await?)?;
    let token = landed.fragment()?.strip_prefix("temporaryToken=")?;
    Some(token.to_owned())
}

fn location(answer: &Answer) -> Option<Url> {
    let location = answer.headers.get(http::header::LOCATION)?;
    Url::parse(location.to_str().ok()?).ok()
}
