//! The sample actor service: profiles and feature settings.

mod store;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{MethodFilter, get, post, put};
use http::StatusCode;
use postern_common::Clock;
use postern_common::database::Sqlite;
use postern_common::decode::{Field, Value as Node};
use postern_common::http::{Json, json};
use postern_common::problem::{Code, Problem};
use postern_common::token::Verifier;
use serde_json::{Map, Value, json};

use self::store::{Actor, Outcome, Store};
use super::{Caller, Verifies, store_failed};
use crate::query;

/// Bytes of a profile or of a feature's settings as JSON.
const MAX_JSON: usize = 64 << 10;

/// The group whose members may change features.
const ADMINS: &str = "admin";

/// What the service works with.
#[derive(Debug)]
pub(crate) struct ActorService {
    verifier: Arc<Verifier>,
    store: Store,
    clock: Clock,
}

impl ActorService {
    pub(crate) fn new(verifier: Arc<Verifier>, sqlite: Sqlite, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            verifier,
            store: Store::new(sqlite),
            clock,
        })
    }
}

impl Verifies for ActorService {
    fn verifier(&self) -> &Verifier {
        &self.verifier
    }
}

/// Every route of the service.
pub(crate) fn router(service: Arc<ActorService>) -> Router {
    Router::new()
        .route(
            "/actors/register",
            post(register).on(MethodFilter::GET, nobody),
        )
        .route("/actors/{id}", get(actor))
        .route("/actor", get(actors))
        .route("/admin/features/{name}", put(feature))
        .with_state(service)
}

/// A GET of this path is an actor of this name, and there is none.
async fn nobody() -> Problem {
    Code::NotFound.into()
}

/// `POST /actors/register`, by the authentication upstream alone. Repeating it changes nothing.
async fn register(
    State(service): State<Arc<ActorService>>,
    caller: Caller,
    body: Json,
) -> Result<Response, Problem> {
    caller.service(&["auth"])?;
    let (actor_id, email, profile) = body.read(|object| {
        let actor_id = object.required("actorId", |field| field.text(1..=128));
        let email = object.required("email", |field| field.text(3..=254));
        let profile = object.or("profile", Some(Map::new()), |field| {
            Some(read_profile(field))
        });
        Some((actor_id?, email?, profile?))
    })?;
    let actor = Actor {
        actor_id,
        email,
        profile,
        created_at: service.clock.now(),
    };
    let outcome = service
        .store
        .register(&actor)
        .await
        .map_err(|error| store_failed(&error))?;
    let (status, actor) = match outcome {
        Outcome::Created => (StatusCode::CREATED, actor),
        Outcome::Known(known) if known.email == actor.email && known.profile == actor.profile => {
            (StatusCode::OK, known)
        }
        Outcome::Known(_) => {
            let detail = "is registered with another e-mail address or profile";
            return Err(Problem::new(Code::ValidationFailed).error(
                "/actorId",
                "already_registered",
                detail,
            ));
        }
    };
    let body = json!({
        "actorId": actor.actor_id, "email": actor.email, "profile": actor.profile, "createdAt": actor.created_at,
    });
    Ok(json(status, &body))
}

/// A JSON object whose well-known fields are of the right kind; others are kept as they are.
fn read_profile(field: Field<'_>) -> Option<Map<String, Value>> {
    field.object(|profile| {
        for name in ["firstName", "lastName", "phone", "deviceToken"] {
            profile.optional(name, |field| field.text(0..=4096));
        }
        profile.optional("subscription", |field| {
            field.object(|inner| Some(inner.entries(|_, _| Some(()))))
        });
        profile.entries(|_, _| Some(()));
        Some(())
    })?;
    small_object(field)
}

/// An object of the caller's own shape.
fn small_object(field: Field<'_>) -> Option<Map<String, Value>> {
    let Node::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    let json = field.node().to_json();
    if json.to_string().len() > MAX_JSON {
        return field.fail(
            "invalid_length",
            format!("must be at most {MAX_JSON} bytes of JSON"),
        );
    }
    json.as_object().cloned()
}

/// `GET /actors/{id}`, for the actor itself and for services; to anyone else nothing is there.
async fn actor(
    State(service): State<Arc<ActorService>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    if !caller.may_see(&id) {
        return Err(Code::NotFound.into());
    }
    let actor = service
        .store
        .get(&id)
        .await
        .map_err(|error| store_failed(&error))?;
    Ok(json(StatusCode::OK, &flat(actor.ok_or(Code::NotFound)?)))
}

/// `GET /actor?actorId=…`: a list of those whom the caller may see.
async fn actors(
    State(service): State<Arc<ActorService>>,
    caller: Caller,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let mut parameters = query::parse(text.as_deref(), &["actorId"])?;
    let Some(id) = parameters.remove("actorId") else {
        return Err(Problem::new(Code::InvalidRequest).error(
            "/actorId",
            "missing_field",
            "is required",
        ));
    };
    let actor = match caller.may_see(&id) {
        true => service
            .store
            .get(&id)
            .await
            .map_err(|error| store_failed(&error))?,
        false => None,
    };
    Ok(json(
        StatusCode::OK,
        &actor.map(flat).into_iter().collect::<Vec<_>>(),
    ))
}

/// The profile's fields beside the actor's own, which win.
fn flat(actor: Actor) -> Value {
    let Actor {
        actor_id,
        email,
        mut profile,
        created_at,
    } = actor;
    profile.insert("actorId".to_owned(), actor_id.into());
    profile.insert("email".to_owned(), email.into());
    profile.insert("createdAt".to_owned(), created_at.to_string().into());
    Value::Object(profile)
}

/// `PUT /admin/features/{featureName}`, for users in the group `admin`.
async fn feature(
    State(service): State<Arc<ActorService>>,
    caller: Caller,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    if !caller.user()?.groups.iter().any(|group| group == ADMINS) {
        return Err(Problem::new(Code::InsufficientScope)
            .detail("Only the group admin may change features."));
    }
    let named = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !named {
        return Err(Problem::new(Code::NotFound)
            .detail("Feature names are 1 to 64 letters, digits, - _ and dots."));
    }
    let root = body.into_node()?;
    let mistakes = postern_common::decode::Mistakes::default();
    let settings = small_object(mistakes.field(&root));
    let settings = mistakes.finish(settings).map_err(Problem::from_mistakes)?;
    let now = service.clock.now();
    service
        .store
        .set_feature(&name, &settings, now)
        .await
        .map_err(|error| store_failed(&error))?;
    Ok(json(
        StatusCode::OK,
        &json!({ "featureName": name, "settings": settings, "updatedAt": now }),
    ))
}

#[cfg(test)]
mod tests;
