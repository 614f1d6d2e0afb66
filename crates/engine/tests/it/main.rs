//! The engine against a model, against failing stores, and across power cuts.

#![allow(missing_docs)]

mod crash;
mod faults;
mod model;
mod scripted;
mod support;
