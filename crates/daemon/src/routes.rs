//! The requests of the interface, what each does, and their OpenAPI document.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::command::Program;
use crate::events::{Events, Stream};
use crate::refusal::Refusal;
use crate::tasks::Tasks;
use crate::verbs::{Change, look};
use crate::volumes::{self, Volumes};

/// What requests act on.
#[derive(Clone)]
pub(crate) struct Daemon {
    pub(crate) program: Program,
    pub(crate) tasks: Tasks,
    pub(crate) events: Events,
    pub(crate) volumes: Volumes,
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Document,
    ListPools,
    Pool,
    PutPool,
    DeletePool,
    ListMounts,
    Mount,
    PutMount,
    DeleteMount,
    ListTasks,
    Task,
    Events,
}

/// A request that there is.
struct Route {
    method: Method,
    /// Its last part may be a parameter, `{…}`: one percent-encoded segment.
    path: &'static str,
    verb: Verb,
    summary: &'static str,
}

const fn route(method: Method, path: &'static str, verb: Verb, summary: &'static str) -> Route {
    Route { method, path, verb, summary }
}

static ROUTES: [Route; 12] = [
    route(Method::GET, "/v1/openapi.json", Verb::Document, "This document"),
    route(Method::GET, "/v1/pools", Verb::ListPools, "Pools, as 'polylane pool ls --json'"),
    route(Method::GET, "/v1/pools/{name}", Verb::Pool, "A pool, as 'polylane pool info --json'"),
    route(Method::PUT, "/v1/pools/{name}", Verb::PutPool, "Makes a pool, or changes its limits"),
    route(Method::DELETE, "/v1/pools/{name}", Verb::DeletePool, "Removes a pool that is not used"),
    route(Method::GET, "/v1/mounts", Verb::ListMounts, "Mounts, as 'polylane mount --json'"),
    route(Method::GET, "/v1/mounts/{path}", Verb::Mount, "The mount at a path"),
    route(Method::PUT, "/v1/mounts/{path}", Verb::PutMount, "Mounts a lane, unless it is mounted"),
    route(Method::DELETE, "/v1/mounts/{path}", Verb::DeleteMount, "Unmounts; all is durable then"),
    route(Method::GET, "/v1/tasks", Verb::ListTasks, "Changes that go on, and the latest ended"),
    route(Method::GET, "/v1/tasks/{id}", Verb::Task, "A change, and what it said last"),
    route(Method::GET, "/v1/events", Verb::Events, "Events, one JSON object a line, without end"),
];

/// What a request is answered.
pub(crate) enum Answer {
    /// A status and a body.
    Whole(StatusCode, Value),
    /// Events, one a line.
    Stream(Stream),
}

/// Executes a request.
///
/// # Errors
/// It is none, the caller may not, or what it asks for cannot be.
pub(crate) async fn answer(
    daemon: &Daemon,
    caller: Caller,
    (method, path): (&Method, &str),
    body: &[u8],
) -> Result<Answer, Refusal> {
    if volumes::is_request(path) && method == Method::POST {
        let (status, value) = daemon.volumes.answer(&daemon.tasks, caller, path, body).await;
        return Ok(Answer::Whole(status, value));
    }
    let (verb, parameter) = find(method, path)?;
    let whole = |value: Value| Ok(Answer::Whole(StatusCode::OK, value));
    match verb {
        Verb::Document => whole(document()),
        Verb::ListPools => whole(look(&daemon.program, &["pool", "ls", "--json"]).await?),
        Verb::Pool => whole(pool(daemon, &parameter).await?),
        Verb::PutPool => {
            let pool = named("name", parameter, body)?;
            change((daemon, caller), Change::Pool(pool, caller.member())).await
        }
        Verb::DeletePool => {
            change((daemon, caller), Change::RemovePool(parameter, caller.member())).await
        }
        Verb::ListMounts => whole(look(&daemon.program, &["mount", "--json"]).await?),
        Verb::Mount => whole(mount(daemon, &parameter).await?),
        Verb::PutMount => {
            caller.must_own()?;
            change((daemon, caller), Change::Mount(named("path", absolute(parameter)?, body)?))
                .await
        }
        Verb::DeleteMount => {
            caller.must_own()?;
            change((daemon, caller), Change::Unmount(absolute(parameter)?)).await
        }
        Verb::ListTasks => whole(daemon.tasks.describe()),
        Verb::Task => {
            let task = parameter.parse().ok().and_then(|id| daemon.tasks.find(id));
            whole(task.ok_or_else(|| Refusal::not_found("no such task"))?.describe())
        }
        Verb::Events => Ok(Answer::Stream(daemon.events.listen())),
    }
}

/// The request of a method and a path, with its parameter.
fn find(method: &Method, path: &str) -> Result<(Verb, String), Refusal> {
    let matching: Vec<(&Route, &str)> =
        ROUTES.iter().filter_map(|route| Some((route, parameter(route.path, path)?))).collect();
    if matching.is_empty() {
        return Err(Refusal::not_found("no such path: see /v1/openapi.json"));
    }
    let found = matching.into_iter().find(|(route, _)| route.method == *method);
    let (route, text) = found.ok_or_else(|| {
        let message = "no such method for this path: see /v1/openapi.json";
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "unknown-method", message)
    })?;
    let bad = || Refusal::malformed(&"the path's last part is no percent-encoded UTF-8 text");
    Ok((route.verb, decoded(text).ok_or_else(bad)?))
}

/// The part of `path` that stands for the parameter of `template`; empty where it has none.
fn parameter<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    match template.split_once('{') {
        None => (template == path).then_some(""),
        Some((prefix, _)) => {
            path.strip_prefix(prefix).filter(|rest| !rest.is_empty() && !rest.contains('/'))
        }
    }
}

/// A percent-encoded text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let value = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| value)?);
        rest = after;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// A path for which the daemon's own directory does not count.
fn absolute(path: String) -> Result<String, Refusal> {
    match path.starts_with('/') {
        true => Ok(path),
        false => Err(Refusal::malformed(&format_args!(
            "{path}: not an absolute path: write it as /v1/mounts/%2Fsrv%2Fdata"
        ))),
    }
}

/// A body with the name that the path says; an empty one is an object without members.
fn named<T: serde::de::DeserializeOwned>(
    key: &str,
    name: String,
    body: &[u8],
) -> Result<T, Refusal> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let malformed = |error: serde_json::Error| Refusal::malformed(&error);
    let mut members: serde_json::Map<String, Value> =
        serde_json::from_slice(body).map_err(malformed)?;
    match members.insert(key.to_string(), Value::String(name.clone())) {
        Some(other) if other != name => Err(Refusal::malformed(&format_args!(
            "{key}: the path says {name:?}, the body {other}"
        ))),
        _ => serde_json::from_value(Value::Object(members)).map_err(malformed),
    }
}

/// Starts a change, and says how it is once it has ended or a request may wait no longer.
async fn change((daemon, caller): (&Daemon, Caller), change: Change) -> Result<Answer, Refusal> {
    let task = daemon.tasks.start(caller, change)?;
    match task.wait().await {
        Some(Ok(())) => Ok(Answer::Whole(StatusCode::OK, task.describe())),
        Some(Err(refusal)) => Err(refusal),
        None => Ok(Answer::Whole(StatusCode::ACCEPTED, task.describe())),
    }
}

async fn pool(daemon: &Daemon, name: &str) -> Result<Value, Refusal> {
    let info = look(&daemon.program, &["pool", "info", "--json", "--", name]).await;
    info.map_err(|refusal| match refusal.code {
        "failed" | "usage" => Refusal::not_found(refusal.message),
        _ => refusal,
    })
}

async fn mount(daemon: &Daemon, path: &str) -> Result<Value, Refusal> {
    let mounts = look(&daemon.program, &["mount", "--json"]).await?;
    let found = mounts.as_array().and_then(|all| all.iter().find(|mount| mount["path"] == path));
    found.cloned().ok_or_else(|| Refusal::not_found(format!("{path}: no lane is mounted there")))
}

/// The OpenAPI document.
fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for Route { method, path, verb, summary } in &ROUTES {
        let at = paths.entry(*path).or_insert_with(|| json!({}));
        let error = json!({ "$ref": "#/components/responses/error" });
        let mut responses = json!({ "200": { "description": "Done" }, "default": error });
        let mut operation = json!({ "operationId": format!("{verb:?}"), "summary": summary });
        if *method != Method::GET {
            let later = "It goes on as this task: GET /v1/tasks/{id} tells of its end";
            responses["202"] = json!({ "description": later });
        }
        operation["responses"] = responses;
        if let Some((_, name)) = path.split_once('{') {
            operation["parameters"] = json!([{ "name": name.trim_end_matches('}'), "in": "path",
                "required": true, "schema": { "type": "string" } }]);
        }
        let schema = match verb {
            Verb::PutPool => Some("pool"),
            Verb::PutMount => Some("mount"),
            _ => None,
        };
        if let Some(schema) = schema {
            let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
            operation["requestBody"] =
                json!({ "content": { "application/json": { "schema": schema } } });
        }
        at[method.as_str().to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "polylane", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": components(),
    })
}

/// Bodies of requests, and the answer to one that is refused.
fn components() -> Value {
    let (text, number, flag) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "boolean" }));
    let object = |required: &[&str], properties: Value| {
        json!({ "type": "object", "additionalProperties": false, "required": required,
            "properties": properties })
    };
    let error = json!({ "type": "object", "required": ["error"], "properties": { "error": object(
        &["code", "message"],
        json!({ "code": text, "message": text }),
    ) } });
    json!({
        "schemas": {
            "pool": object(&[], json!({ "name": text, "cpus": text, "memory": text,
                "pids": number, "weight": number, "dirty-limit": text, "ceph-cache": text,
                "ceph-read-ahead": text, "ceph-threads": number,
                "ns": { "type": "array", "items": text } })),
            "mount": object(&["source"], json!({ "path": text, "source": text,
                "lower": { "type": "array", "items": text },
                "map-users": { "type": "array", "items": text }, "pool": text, "size": text,
                "weight": number, "share": flag, "ro": flag, "idmap": flag,
                "noatime": flag, "nodiratime": flag })),
        },
        "responses": { "error": {
            "description": "One line that says why not, and a code",
            "content": { "application/json": { "schema": error } },
        } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{Mount, Pool};

    #[test]
    fn the_document_and_the_routes_say_the_same() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        let operations: usize =
            paths.values().filter_map(Value::as_object).map(|at| at.len()).sum();
        assert_eq!(operations, ROUTES.len(), "no two routes are the same");
        for (template, at) in paths {
            let path = template.replace("{id}", "7").replace("{name}", "web");
            let path = path.replace("{path}", "%2Fsrv");
            for (method, operation) in at.as_object().expect("operations") {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("method");
                let (verb, _) = find(&method, &path).expect("a route");
                assert_eq!(operation["operationId"], format!("{verb:?}"));
                let has_parameter = template.contains('{');
                assert_eq!(operation["parameters"].is_array(), has_parameter, "{template}");
            }
            let refusal = find(&Method::PATCH, &path).expect_err("no such method");
            assert_eq!(refusal.status, StatusCode::METHOD_NOT_ALLOWED);
        }
    }

    /// Each member that a schema names is understood, and no other.
    #[test]
    fn bodies_are_as_the_document_says() {
        let schemas = document()["components"]["schemas"].clone();
        for (name, key, value) in [("pool", "name", "web"), ("mount", "path", "/srv")] {
            let mut members = schemas[name]["properties"].as_object().expect("members").clone();
            for schema in members.values_mut() {
                *schema = match schema["type"].as_str().expect("a type") {
                    "string" => json!("7"),
                    "integer" => json!(7),
                    "boolean" => json!(true),
                    _ => json!(["7"]),
                };
            }
            members.insert(key.to_string(), json!(value));
            let understood = |members: &serde_json::Map<String, Value>| {
                let body = Value::Object(members.clone()).to_string();
                match name {
                    "pool" => named::<Pool>(key, value.into(), body.as_bytes()).map(drop),
                    _ => named::<Mount>(key, value.into(), body.as_bytes()).map(drop),
                }
            };
            assert_eq!(understood(&members), Ok(()), "{name}");
            members.insert("other".to_string(), json!(1));
            assert_eq!(understood(&members).expect_err("unknown").code, "malformed");
        }
    }

    #[test]
    fn paths_are_found_and_decoded() {
        let at = |path: &str| find(&Method::GET, path);
        assert_eq!(at("/v1/pools"), Ok((Verb::ListPools, String::new())));
        assert_eq!(at("/v1/pools/web"), Ok((Verb::Pool, "web".to_string())));
        assert_eq!(at("/v1/mounts/%2Fa%20b%2f%C3%A4"), Ok((Verb::Mount, "/a b/ä".to_string())));
        for path in ["/", "/v1/pools/", "/v1/pools/a/b", "/v2/pools", "/v1/mounts//srv"] {
            assert_eq!(at(path).expect_err(path).status, StatusCode::NOT_FOUND, "{path}");
        }
        for path in ["%", "%2", "%zz", "%+1", "%ff", "%00", "%c3"] {
            let refusal = at(&format!("/v1/mounts/{path}")).expect_err(path);
            assert_eq!(refusal.code, "malformed", "{path}");
        }
    }

    #[test]
    fn a_body_agrees_with_its_path() {
        let pool = |body: &str| named::<Pool>("name", "web".to_string(), body.as_bytes());
        for body in ["", " \n", "{}", r#"{"name":"web"}"#, r#"{"memory":"1G"}"#] {
            assert_eq!(pool(body).map(|pool| pool.name), Ok("web".to_string()), "{body}");
        }
        let deep = "[".repeat(10_000);
        for body in [r#"{"name":"other"}"#, "[]", "7", "{", r#"{"pids":-1}"#, "{} {}", &deep] {
            assert_eq!(pool(body).expect_err(body).code, "malformed", "{body}");
        }
    }
}
