//! Endpoints that the tool drives: Feroce in this process ([`feroce`]), and Linux rxe through an
//! agent in a guest ([`agent`]).
//!
//! A [`plan::Plan`] is data: what a requester and a responder post, and how each request completes.
//! [`setup`] connects two [`end::End`]s for a plan, and [`model`] computes what their memories hold
//! afterwards.

pub mod agent;
pub mod end;
pub mod feroce;
pub mod model;
pub mod plan;
pub mod setup;

use std::fmt;

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Creates a failure from an error and the action that failed.
pub fn failed<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure(format!("{doing}: {error}"))
}
