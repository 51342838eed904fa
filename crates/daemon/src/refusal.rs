//! Why a request is refused: a status of HTTP, a code for programs, one line for people.

use std::fmt;

use hyper::StatusCode;
use serde_json::{Value, json};

/// A refused or failed request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// One of the codes of docs/design/daemon.md.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Refusal {
        Refusal { status, code, message: message.into() }
    }

    /// A request that cannot be understood.
    pub(crate) fn malformed(why: &dyn fmt::Display) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "malformed", why.to_string())
    }

    /// Something that is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "not-found", message)
    }

    /// A caller that may not.
    pub(crate) fn forbidden(message: &str) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// Too much is going on.
    pub(crate) fn busy(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    /// A fault of the daemon or its host.
    pub(crate) fn internal(why: &dyn fmt::Display) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", why.to_string())
    }

    /// As the body of an answer.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message } })
    }
}
