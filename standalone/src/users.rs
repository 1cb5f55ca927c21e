//! The users of the pool (`postern user`), by the admin listener of the authentication service,
//! which audits each change.

use std::path::Path;

use postern_core::config::Env;
use postern_core::exit::Exit;
use postern_service::admin_api::OPERATOR;
use reqwest::{Method, Url};
use serde_json::Value;

use crate::lifecycle::EnvironmentFile;

/// The variables with the address of the admin listener and its secret.
const URL: &str = "POSTERN_AUTH_ADMIN_URL";
const TOKEN: &str = postern_dev::ADMIN_TOKEN;

/// The users of a pool.
#[derive(Debug)]
pub struct Users {
    http: reqwest::Client,
    env: Env,
    operator: String,
}

impl Users {
    /// Finds the service that the environment names, or that of the running installation of a data
    /// folder.
    pub fn open(folder: &Path, env: &Env) -> Result<Self, Exit> {
        let client = reqwest::Client::builder().no_proxy().build();
        let operator = env.get("USER").filter(|name| name.is_ascii());
        Ok(Self {
            http: client.map_err(|error| Exit::unavailable(error.to_string()))?,
            operator: operator.unwrap_or("postern").to_owned(),
            env: match env.get(URL) {
                Some(_) => env.clone(),
                None => EnvironmentFile::read(folder)?.to_env(),
            },
        })
    }

    /// Lists the users whose address begins with a text.
    pub async fn list(&self, email: &str) -> Result<Vec<Value>, Exit> {
        let (mut users, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let after = cursor.as_str().unwrap_or_default();
            let parameters = [("email", email), ("cursor", after)];
            let parameters = parameters.iter().filter(|(_, value)| !value.is_empty());
            let mut url = self.url("/admin/users")?;
            url.query_pairs_mut().extend_pairs(parameters);
            let mut page = self.send(Method::GET, url, None).await?;
            let more = page["users"].as_array_mut().into_iter();
            users.extend(more.flat_map(std::mem::take));
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                return Ok(users);
            }
        }
    }

    /// Makes a change of `POST /admin/users/{subject}/{change}` for the user with an address.
    pub async fn change(&self, email: &str, change: &str, body: &Value) -> Result<(), Exit> {
        let users = self.list(email).await?;
        let user = users.iter().find(|user| user["email"] == email);
        let unknown = || Exit::failed(format!("the pool has no user {email}"));
        let subject = user
            .and_then(|user| user["subject"].as_str())
            .ok_or_else(unknown)?;
        let url = self.url(&format!("/admin/users/{subject}/{change}"))?;
        self.send(Method::POST, url, Some(body)).await.map(drop)
    }

    fn variable(&self, name: &str) -> Result<&str, Exit> {
        let missing = || Exit::usage(format!("the environment has no {name}"));
        self.env.get(name).ok_or_else(missing)
    }

    fn url(&self, path: &str) -> Result<Url, Exit> {
        let base = self.variable(URL)?.trim_end_matches('/');
        Url::parse(&format!("{base}{path}")).map_err(|error| Exit::usage(format!("{URL}: {error}")))
    }

    async fn send(&self, method: Method, url: Url, body: Option<&Value>) -> Result<Value, Exit> {
        let request = self
            .http
            .request(method, url)
            .bearer_auth(self.variable(TOKEN)?);
        let request = request.header(OPERATOR, &self.operator);
        let bodies = body.into_iter();
        let request = bodies.fold(request, |request, body| request.json(body));
        let answer = request.send().await.map_err(|error| {
            let error = error.without_url();
            let failed = format!("no answer of postern-auth ({error}); is it running?");
            Exit::unavailable(failed)
        })?;
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or_default();
        if status.is_success() {
            return Ok(body);
        }
        let (error, detail) = (&body["errors"][0], &body["detail"]);
        let reasons = [&error["pointer"], &error["detail"], detail, &body["code"]];
        let reasons: Vec<_> = reasons.into_iter().filter_map(Value::as_str).collect();
        let reasons = reasons.join(" ");
        Err(Exit::failed(format!("postern-auth: {status} {reasons}")))
    }
}
