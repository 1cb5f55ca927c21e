//! The actor service: profiles and feature settings.
//!
//! It verifies the token of every request itself, as services behind the gateway should, and trusts
//! neither the network nor `X-Postern-…` headers.

mod store;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{MethodFilter, get, post, put};
use http::StatusCode;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::decode::{Field, Object, Value as Node};
use postern_core::email::EmailAddress;
use postern_core::problem::{Code, Problem};
use postern_core::token::Verifier;
use postern_service::http::{Json, Query, json};
use postern_store::database::Sqlite;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use self::store::{ActorStore, RegisteredActor};
use crate::caller::{ProvidesVerifier, VerifiedCaller, created};

/// Maximum size of a profile or of a feature's settings, in bytes of JSON.
const MAX_OBJECT_BYTES: usize = 64 << 10;

/// Group whose members may change features.
const ADMIN_GROUP: &str = "admin";

/// The dependencies of the service.
#[derive(Debug)]
pub(crate) struct ActorService {
    verifier: Arc<Verifier>,
    store: ActorStore,
    clock: Clock,
}

impl ActorService {
    pub(crate) fn new(verifier: Arc<Verifier>, sqlite: Sqlite, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            verifier,
            store: ActorStore::new(sqlite),
            clock,
        })
    }
}

impl ProvidesVerifier for ActorService {
    fn verifier(&self) -> &Verifier {
        &self.verifier
    }
}

/// Builds the router of the service.
pub(crate) fn router(service: Arc<ActorService>) -> Router {
    Router::new()
        .route(
            "/actors/register",
            post(register).on(MethodFilter::GET, register_not_found),
        )
        .route("/actors/{id}", get(actor))
        .route("/actor", get(actors))
        .route("/candidates", get(candidates).post(add_candidate))
        .route("/candidates/{id}", get(candidate))
        .route("/admin/features/{name}", put(feature))
        .with_state(service)
}

/// Answers `GET /actors/register`, which the route `/actors/{id}` would otherwise take for an actor
/// id.
async fn register_not_found() -> Problem {
    Code::NotFound.into()
}

/// `POST /actors/register`, permitted to the authentication upstream only. Idempotent.
async fn register(
    State(service): State<Arc<ActorService>>,
    caller: VerifiedCaller,
    body: Json,
) -> Result<Response, Problem> {
    caller.service(&["auth"])?;
    let now = service.clock.now();
    let actor = body.read(|object| {
        let actor_id = object.required("actorId", |field| field.text(1..=128));
        read_actor(object, actor_id, now)
    })?;
    let (status, actor) = match service.store.register(&actor).await? {
        None => (StatusCode::CREATED, actor),
        Some(known) if known.email == actor.email && own_fields(&known) == own_fields(&actor) => {
            (StatusCode::OK, known)
        }
        Some(_) => {
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

/// Returns what the person has entered: the address may have been verified meanwhile.
fn own_fields(actor: &RegisteredActor) -> Map<String, Value> {
    let mut profile = actor.profile.clone();
    profile.remove("emailVerified");
    profile
}

/// Reads the fields that actors and candidates have.
fn read_actor(
    object: &Object<'_>,
    actor_id: Option<String>,
    created_at: Timestamp,
) -> Option<RegisteredActor> {
    let email = object.required("email", EmailAddress::read);
    let profile = object.or("profile", Some(Map::new()), |field| {
        Some(read_profile(field))
    });
    Some(RegisteredActor {
        actor_id: actor_id?,
        email: email?.as_str().to_owned(),
        profile: profile?,
        created_at,
    })
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
    State(service): State<Arc<ActorService>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    if !caller.may_see(&id) {
        return Err(Code::NotFound.into());
    }
    let actor = service.store.get(&id).await?.ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &merge_profile(actor)))
}

/// `GET /actor?actorId=…`: lists the actors that the caller may see.
async fn actors(
    State(service): State<Arc<ActorService>>,
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
        true => service.store.get(&id).await?,
        false => None,
    };
    let found: Vec<_> = actor.map(merge_profile).into_iter().collect();
    Ok(json(StatusCode::OK, &found))
}

/// `GET /candidates`: lists the registered actors, newest first, for recruiters and services.
async fn candidates(
    State(service): State<Arc<ActorService>>,
    caller: VerifiedCaller,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let actors = service.store.list().await?.into_iter();
    let candidates: Vec<_> = actors.map(merge_profile).collect();
    Ok(json(StatusCode::OK, &json!({ "candidates": candidates })))
}

/// `POST /candidates`: stores a person who has not registered, for recruiters and services.
async fn add_candidate(
    State(service): State<Arc<ActorService>>,
    caller: VerifiedCaller,
    body: Json,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let (id, now) = (Uuid::now_v7().to_string(), service.clock.now());
    let candidate = body.read(|object| read_actor(object, Some(id), now))?;
    service.store.register(&candidate).await?;
    let location = format!("/candidates/{}", candidate.actor_id);
    Ok(created(&location, &merge_profile(candidate)))
}

/// `GET /candidates/{id}`, for recruiters and services. The id is the `actorId`.
async fn candidate(
    State(service): State<Arc<ActorService>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let candidate = service.store.get(&id).await?.ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &merge_profile(candidate)))
}

/// Merges the profile's fields with the actor's own, which take precedence.
fn merge_profile(actor: RegisteredActor) -> Value {
    let RegisteredActor {
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
    caller: VerifiedCaller,
    Path(name): Path<String>,
    body: Json,
) -> Result<Response, Problem> {
    if !caller
        .user()?
        .groups
        .iter()
        .any(|group| group == ADMIN_GROUP)
    {
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
    let now = service.clock.now();
    service.store.set_feature(&name, &settings, now).await?;
    let feature = json!({ "featureName": name, "settings": settings, "updatedAt": now });
    Ok(json(StatusCode::OK, &feature))
}
