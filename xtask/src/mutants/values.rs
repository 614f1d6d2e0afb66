//! Simple values of a type, which replace a function's result.

use quote::ToTokens;
use syn::{GenericArgument, PathArguments, ReturnType, Type, TypePath, TypeReference};

/// Largest number of values for one type.
const MAX_VALUES: usize = 6;

/// Returns expressions for values of a function's result, none if there is no simple one.
pub(super) fn of_result(result: &ReturnType) -> Vec<String> {
    match result {
        ReturnType::Default => vec!["()".to_owned()],
        ReturnType::Type(_, ty) => of_type(ty),
    }
}

fn of_type(ty: &Type) -> Vec<String> {
    let mut values = match ty {
        Type::Path(path) => of_path(path),
        Type::Reference(reference) => of_reference(reference),
        Type::Paren(inner) => of_type(&inner.elem),
        Type::Group(inner) => of_type(&inner.elem),
        Type::Array(array) => {
            let len = array.len.to_token_stream();
            of_type(&array.elem).iter().map(|value| format!("[{value}; {len}]")).collect()
        }
        Type::Tuple(tuple) => {
            let mut values = vec![String::new()];
            for elem in &tuple.elems {
                let of_elem = of_type(elem);
                values = values.iter().flat_map(|v| of_elem.iter().map(move |e| format!("{v}{e}, "))).collect();
            }
            values.iter().map(|inner| format!("({inner})").replace(", )", ")")).collect()
        }
        _ => Vec::new(),
    };
    values.truncate(MAX_VALUES);
    values
}

fn of_reference(reference: &TypeReference) -> Vec<String> {
    match &*reference.elem {
        Type::Path(path) if path.path.is_ident("str") && reference.mutability.is_none() => {
            words(&["\"\"", "\"xyzzy\""])
        }
        Type::Slice(slice) => {
            let one = of_type(&slice.elem).into_iter().map(|value| format!("Vec::leak(vec![{value}])"));
            words(&["Vec::leak(Vec::new())"]).into_iter().chain(one).collect()
        }
        other => of_type(other).iter().map(|value| format!("Box::leak(Box::new({value}))")).collect(),
    }
}

fn of_path(path: &TypePath) -> Vec<String> {
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let name = last.ident.to_string();
    let argument = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(of_type(ty)),
            _ => None,
        }),
        _ => None,
    };
    let wrapped = |wrap: &str| -> Vec<String> {
        let inner = argument.clone().unwrap_or_else(|| words(&["Default::default()"]));
        inner.iter().map(|value| format!("{wrap}({value})")).collect()
    };
    match name.as_str() {
        "bool" => words(&["true", "false"]),
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => words(&["0", "1"]),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => words(&["0", "1", "-1"]),
        "f32" | "f64" => words(&["0.0", "1.0", "-1.0"]),
        "String" => words(&["String::new()", "\"xyzzy\".into()"]),
        "Option" => words(&["None"]).into_iter().chain(wrapped("Some")).collect(),
        "Result" => wrapped("Ok"),
        "Vec" => {
            let one = argument.iter().flatten().map(|value| format!("vec![{value}]"));
            words(&["Vec::new()"]).into_iter().chain(one).collect()
        }
        "Box" | "Arc" | "Rc" => wrapped(&format!("{name}::new")),
        _ => words(&["Default::default()"]),
    }
}

fn words(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(ty: &str) -> Vec<String> {
        of_type(&syn::parse_str(ty).unwrap())
    }

    #[test]
    fn values_of_types_are_those_that_a_function_could_return() {
        assert_eq!(values("bool"), ["true", "false"]);
        assert_eq!(values("i32"), ["0", "1", "-1"]);
        assert_eq!(values("io::Result<()>"), ["Ok(())"]);
        assert_eq!(values("Option<bool>"), ["None", "Some(true)", "Some(false)"]);
        assert_eq!(values("(u8, bool)"), ["(0, true)", "(0, false)", "(1, true)", "(1, false)"]);
        assert_eq!(values("&[u8]"), ["Vec::leak(Vec::new())", "Vec::leak(vec![0])", "Vec::leak(vec![1])"]);
        assert_eq!(values("&'static str"), ["\"\"", "\"xyzzy\""]);
        assert_eq!(values("Arc<Device>"), ["Arc::new(Default::default())"]);
        assert_eq!(values("[u8; 4]"), ["[0; 4]", "[1; 4]"]);
        assert!(values("impl Iterator<Item = u8>").is_empty() && values("!").is_empty());
    }
}
