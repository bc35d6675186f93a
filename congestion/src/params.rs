//! The parameters of congestion control: those of DCQCN's three points and of the delay-based
//! algorithms, the parameter sets of the literature and of vendors ([`SETS`]), and every parameter
//! by name ([`all`]).

mod dcqcn;
mod nvidia;
mod sets;
mod table;
mod value;

pub use dcqcn::{
    AlphaTimer, BeyondKmax, ByteRestart, CnpScope, CnpTiming, CutOrder, HyperIncrease, HyperPeriod,
    MarkAt, MarkingParams, NotificationParams, ReactionParams, StepCount, TargetClamp, TargetLimit,
};
pub use nvidia::{NVIDIA, NvidiaParam};
pub use sets::{SETS, Set};
pub use table::{MARKING, NOTIFICATION, Param, Params, REACTION, all, param, range};
pub use value::{Kind, Shown};

/// Why a parameter was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// There is no parameter of this name.
    UnknownName,
    /// The parameter does not accept this value.
    BadValue {
        /// The parameter.
        param: &'static str,
        /// The values that the parameter accepts.
        expects: Expects,
    },
}

/// The values that a parameter accepts, as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expects {
    /// A value of the parameter's kind in its range.
    Kind(&'static Param),
    /// A whole number in NVIDIA's unit.
    Number(&'static NvidiaParam),
}

impl Params {
    /// The parameter set `name`.
    pub fn named(name: &str) -> Option<Self> {
        SETS.iter().find(|set| set.name == name).map(|set| set.params)
    }

    /// Sets the parameter `name` (Feroce's name or NVIDIA's) to the value in `text`.
    ///
    /// # Errors
    ///
    /// [`ParamError`] if there is no such parameter, or it does not accept the value.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ParamError> {
        if let Some(param) = param(name) {
            let expects = Expects::Kind(param);
            let refused = ParamError::BadValue { param: param.name, expects };
            let value = param.kind.parse(text).filter(|value| param.range.contains(value));
            param.set(self, value.ok_or(refused)?);
            return Ok(());
        }
        let known = NVIDIA.iter().find(|known| known.names.contains(&name));
        let known = known.ok_or(ParamError::UnknownName)?;
        let refused =
            ParamError::BadValue { param: known.names[0], expects: Expects::Number(known) };
        let value = text.parse().ok().filter(|value| *value <= known.max);
        *self = value.and_then(|value| known.applied(self, value)).ok_or(refused)?;
        Ok(())
    }
}

impl Default for Params {
    /// The set `paper`.
    fn default() -> Self {
        sets::PAPER
    }
}

impl core::fmt::Display for Expects {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kind(param) => param.expects(f),
            Self::Number(known) => {
                let min = u64::from(known.applied(&Params::default(), 0).is_none());
                write!(f, "{min} to {} ({})", known.max, known.unit)
            }
        }
    }
}

impl core::fmt::Display for ParamError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownName => f.write_str("no parameter of congestion control has this name"),
            Self::BadValue { param, expects } => write!(f, "{param} takes {expects}"),
        }
    }
}

impl core::error::Error for ParamError {}
