//! The actor service: profiles and feature settings.
//!
//! It verifies the token of every request itself, as services behind the gateway should, and trusts
//! neither the network nor `X-Postern-…` headers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{get, post, put};
use http::StatusCode;
use postern_core::clock::Timestamp;
use postern_core::decode::{Field, Object, Value as Node};
use postern_core::email::EmailAddress;
use postern_core::problem::{Code, Problem};
use postern_service::http::{Json, Query, json};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::caller::{VerifiedCaller, created};
use crate::samples::{Sample, Samples};

const ACTOR: &str = "actor";
const FEATURE: &str = "feature";

const MAX_LISTED: usize = 200;

/// Maximum size of a profile or of a feature's settings, in bytes of JSON.
const MAX_OBJECT_BYTES: usize = 64 << 10;

const ADMIN_GROUP: &str = "admin";

pub(crate) fn router(samples: Arc<Samples>) -> Router {
    Router::new()
        // Would be an actor id at the next route.
        .route(
            "/actors/register",
            post(register).get(|| async { Code::NotFound }),
        )
        .route("/actors/{id}", get(actor))
        .route("/actor", get(actors))
        .route("/candidates", get(candidates).post(add_candidate))
        .route("/candidates/{id}", get(candidate))
        .route("/admin/features/{name}", put(feature))
        .with_state(samples)
}

/// `POST /actors/register`, permitted to the authentication upstream only. Idempotent.
async fn register(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    body: Json,
) -> Result<Response, Problem> {
    caller.service(&["auth"])?;
    let now = samples.clock.now();
    let actor = body.read(|object| {
        let actor_id = object.required("actorId", |field| field.text(1..=128));
        read_actor(object, actor_id, now)
    })?;
    let id = actor["actorId"].as_str().unwrap_or_default();
    if samples.insert(ACTOR, id, id, &actor).await? {
        return Ok(json(StatusCode::CREATED, &actor));
    }
    let known = samples.get(ACTOR, id).await?.ok_or(Code::Internal)?.content;
    if own_fields(&known) == own_fields(&actor) {
        return Ok(json(StatusCode::OK, &known));
    }
    let detail = "is registered with another e-mail address or profile";
    let problem = Problem::new(Code::ValidationFailed);
    Err(problem.error("/actorId", "already_registered", detail))
}

/// Returns what the person has entered: the address may have been verified meanwhile.
fn own_fields(actor: &Value) -> (Value, Value) {
    let mut profile = actor["profile"].clone();
    profile["emailVerified"].take();
    (actor["email"].clone(), profile)
}

fn read_actor(
    object: &Object<'_>,
    actor_id: Option<String>,
    created_at: Timestamp,
) -> Option<Value> {
    let email = object.required("email", EmailAddress::read);
    let profile = object.or("profile", Some(Map::new()), |field| {
        Some(read_profile(field))
    });
    Some(json!({
        "actorId": actor_id?, "email": email?.as_str(), "profile": profile?, "createdAt": created_at,
    }))
}

/// Parses a profile: well-known fields must have the expected types; other fields are stored
/// unchanged.
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
    read_object(field)
}

/// Parses an object of arbitrary content up to [`MAX_OBJECT_BYTES`].
fn read_object(field: Field<'_>) -> Option<Map<String, Value>> {
    let Node::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    let json = field.node().to_json();
    if json.to_string().len() > MAX_OBJECT_BYTES {
        return field.fail(
            "invalid_length",
            format!("must be at most {MAX_OBJECT_BYTES} bytes of JSON"),
        );
    }
    json.as_object().cloned()
}

/// `GET /actors/{id}`, for the actor itself and for services. Other callers get 404.
async fn actor(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    if !caller.may_see(&id) {
        return Err(Code::NotFound.into());
    }
    let actor = samples.get(ACTOR, &id).await?.ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &merge_profile(actor)))
}

/// `GET /actor?actorId=…`: lists the actors that the caller may see.
async fn actors(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(text.as_deref().unwrap_or_default(), &["actorId"]);
    let id = query.get("actorId").unwrap_or_default().to_owned();
    if id.is_empty() {
        query.fail("actorId", "missing_field", "is required");
    }
    query.finish()?;
    let actor = match caller.may_see(&id) {
        true => samples.get(ACTOR, &id).await?,
        false => None,
    };
    let found: Vec<_> = actor.map(merge_profile).into_iter().collect();
    Ok(json(StatusCode::OK, &found))
}

/// `GET /candidates`: lists the registered actors, newest first, for recruiters and services.
async fn candidates(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let actors = samples.all(ACTOR).await?.into_iter().take(MAX_LISTED);
    let candidates: Vec<_> = actors.map(merge_profile).collect();
    Ok(json(StatusCode::OK, &json!({ "candidates": candidates })))
}

/// `POST /candidates`: stores a person who has not registered, for recruiters and services.
async fn add_candidate(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    body: Json,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let (id, now) = (Uuid::now_v7().to_string(), samples.clock.now());
    let content = body.read(|object| read_actor(object, Some(id.clone()), now))?;
    samples.insert(ACTOR, &id, &id, &content).await?;
    let candidate = merge_profile(Sample { owner: id, content });
    let id = candidate["actorId"].as_str().unwrap_or_default();
    Ok(created(&format!("/candidates/{id}"), &candidate))
}

/// `GET /candidates/{id}`, for recruiters and services. The id is the `actorId`.
async fn candidate(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let candidate = samples.get(ACTOR, &id).await?.ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &merge_profile(candidate)))
}

/// Merges the profile's fields with the actor's own, which take precedence.
fn merge_profile(actor: Sample) -> Value {
    let mut actor = actor.content;
    let mut merged = actor["profile"].take();
    for name in ["actorId", "email", "createdAt"] {
        merged[name] = actor[name].take();
    }
    merged
}

/// `PUT /admin/features/{featureName}`, for users in the group `admin`.
async fn feature(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    let mut groups = caller.user()?.groups.iter();
    if !groups.any(|group| group == ADMIN_GROUP) {
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
    let mistakes = postern_core::decode::Mistakes::default();
    let settings = read_object(mistakes.field(&root));
    let settings = mistakes.finish(settings).map_err(Problem::from_mistakes)?;
    let now = samples.clock.now();
    let feature = json!({ "featureName": name, "settings": settings, "updatedAt": now });
    samples.delete(FEATURE, &name).await?;
    samples.insert(FEATURE, &name, "", &feature).await?;
    Ok(json(StatusCode::OK, &feature))
}
