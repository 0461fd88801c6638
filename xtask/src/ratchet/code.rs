//! Reads one source file: its functions, assertions, names and calls, all of it outside tests.
//!
//! The text of a macro's definition is no syntax tree, so its functions and assertions are not
//! seen. Arguments of a macro are read if they are expressions, like those of `assert!`.

use std::collections::BTreeSet;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, ImplItem, Item, Meta, Signature, Stmt, Token, TraitItem, UseTree, Visibility,
};

/// A function, from the line of its `fn` to that of its last brace.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) first: usize,
    pub(super) last: usize,
    /// Assertions of a function within it do not count.
    pub(super) assertions: usize,
}

impl Function {
    pub(super) fn lines(&self) -> usize {
        self.last - self.first + 1
    }
}

/// A function's name at its definition, for the matching of calls.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Definition {
    pub(super) name: String,
    /// It has a `self`.
    pub(super) method: bool,
    /// It implements a trait, so that a call of this name may be one of any type.
    pub(super) of_trait: bool,
    /// Other crates may call it, if they can name its type.
    pub(super) public: bool,
}

/// The form of a call's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// `value.name(…)`.
    Method,
    /// `Qualifier::name`, called or handed on.
    Of(String),
    /// `name`, which a `use` brought.
    Imported,
}

/// A call, or a function's path as a value.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) callee: Callee,
    pub(super) line: usize,
}

/// A module whose text is in a file of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Modules of this file around it, then its own name.
    pub(super) names: Vec<String>,
    /// The path in its `#[path]`.
    pub(super) path: Option<String>,
}

/// The counts of one file outside tests.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) functions: Vec<Function>,
    /// Including those outside functions: `const _: () = assert!(…)`.
    pub(super) assertions: usize,
    /// Lines outside tests.
    pub(super) lines: usize,
    pub(super) definitions: BTreeSet<Definition>,
    /// Types, traits and modules.
    pub(super) types: BTreeSet<String>,
    pub(super) calls: Vec<Call>,
    /// Modules whose files are no test files.
    pub(super) modules: Vec<Module>,
    imports: BTreeSet<String>,
    test_lines: usize,
    /// Functions around the visited item, as indices of `functions`.
    around: Vec<usize>,
    /// Modules around it.
    inside: Vec<String>,
}

impl Code {
    /// # Errors
    /// The line at which it is no Rust.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let file = syn::parse_file(text)
            .map_err(|error| format!("{}: {error}", error.span().start().line))?;
        let mut code = Self::default();
        let lines = text.lines().count();
        if is_test(&file.attrs) {
            return Ok(code);
        }
        code.visit_file(&file);
        code.lines = lines - code.test_lines;
        // Any other path of one name is a variable, or a function of this file.
        let imports = &code.imports;
        let known = |call: &Call| call.callee != Callee::Imported || imports.contains(&call.name);
        code.calls.retain(known);
        Ok(code)
    }

    /// Whether an item belongs to a test: then its lines are counted and its inside is not visited.
    fn skips(&mut self, attributes: &[Attribute], whole: &impl Spanned) -> bool {
        let test = is_test(attributes);
        if test {
            let span = whole.span();
            self.test_lines += span.end().line - span.start().line + 1;
        }
        test
    }

    fn define(&mut self, sig: &Signature, of_trait: bool, public: bool) {
        // A function within another has no callers elsewhere.
        if self.around.is_empty() {
            let (name, method) = (sig.ident.to_string(), sig.receiver().is_some());
            self.definitions.insert(Definition { name, method, of_trait, public });
        }
    }

    fn function(&mut self, sig: &Signature, block: &Block) {
        let name = sig.ident.to_string();
        let first = sig.fn_token.span.start().line;
        let last = block.brace_token.span.close().end().line;
        self.around.push(self.functions.len());
        self.functions.push(Function { name, first, last, assertions: 0 });
        self.visit_block(block);
        self.around.pop();
    }

    fn import(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.import(&path.tree),
            UseTree::Name(name) => drop(self.imports.insert(name.ident.to_string())),
            // The new name is not the one of the definition, and a glob brings no names.
            UseTree::Rename(_) | UseTree::Glob(_) => {}
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree)),
        }
    }

    fn module(&mut self, module: &syn::ItemMod) {
        let name = module.ident.to_string();
        self.types.insert(name.clone());
        self.inside.push(name);
        match &module.content {
            Some(_) => visit::visit_item_mod(self, module),
            None => {
                let names = self.inside.clone();
                self.modules.push(Module { names, path: path_of(&module.attrs) });
            }
        }
        self.inside.pop();
    }

    fn call(&mut self, name: &syn::Ident, callee: Callee) {
        let line = name.span().start().line;
        self.calls.push(Call { name: name.to_string(), callee, line });
    }
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.skips(attributes(item), item) {
            return;
        }
        match item {
            Item::Fn(function) => {
                self.define(&function.sig, false, is_public(&function.vis));
                return self.function(&function.sig, &function.block);
            }
            Item::Mod(module) => return self.module(module),
            Item::Use(import) => return self.import(&import.tree),
            Item::Struct(item) => drop(self.types.insert(item.ident.to_string())),
            Item::Enum(item) => drop(self.types.insert(item.ident.to_string())),
            Item::Union(item) => drop(self.types.insert(item.ident.to_string())),
            Item::Trait(item) => drop(self.types.insert(item.ident.to_string())),
            Item::Type(item) => drop(self.types.insert(item.ident.to_string())),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for inner in &item.items {
            let attributes: &[Attribute] = match inner {
                ImplItem::Const(inner) => &inner.attrs,
                ImplItem::Fn(inner) => &inner.attrs,
                ImplItem::Type(inner) => &inner.attrs,
                ImplItem::Macro(inner) => &inner.attrs,
                _ => &[],
            };
            if self.skips(attributes, inner) {
                continue;
            }
            match inner {
                ImplItem::Fn(inner) => {
                    self.define(&inner.sig, item.trait_.is_some(), is_public(&inner.vis));
                    self.function(&inner.sig, &inner.block);
                }
                _ => self.visit_impl_item(inner),
            }
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let TraitItem::Fn(function) = item else { return visit::visit_trait_item(self, item) };
        if !self.skips(&function.attrs, function) {
            self.define(&function.sig, false, true);
            if let Some(block) = &function.default {
                self.function(&function.sig, block);
            }
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes: &[Attribute] = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(statement) => &statement.attrs,
            Stmt::Expr(syn::Expr::Block(block), _) => &block.attrs,
            Stmt::Expr(syn::Expr::MethodCall(call), _) => &call.attrs,
            Stmt::Expr(syn::Expr::Assign(assign), _) => &assign.attrs,
            // An item is checked when it is visited.
            _ => &[],
        };
        if !self.skips(attributes, statement) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string());
        if name.is_some_and(|name| is_assertion(&name)) {
            self.assertions += 1;
            if let Some(&function) = self.around.last() {
                self.functions[function].assertions += 1;
            }
        }
        let arguments = Punctuated::<syn::Expr, Token![,]>::parse_terminated;
        if let Ok(arguments) = call.parse_body_with(arguments) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.call(&call.method, Callee::Method);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let mut segments = path.path.segments.iter().rev();
        if let Some(last) = segments.next() {
            let callee = match segments.next() {
                Some(qualifier) => Callee::Of(qualifier.ident.to_string()),
                None => Callee::Imported,
            };
            self.call(&last.ident, callee);
        }
        visit::visit_expr_path(self, path);
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// `unreachable!` is none: it marks a place that is never reached, and checks nothing.
fn is_assertion(name: &str) -> bool {
    let name = name.strip_prefix("debug_").unwrap_or(name);
    ["assert", "assert_eq", "assert_ne"].contains(&name)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether one of them is `#[test]`, or a `#[cfg]` that only a test build fulfils.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let inside = || attribute.parse_args::<Meta>();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && inside().is_ok_and(|meta| only_in_tests(&meta))
    })
}

fn only_in_tests(meta: &Meta) -> bool {
    let Meta::List(list) = meta else { return meta.path().is_ident("test") };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts = parts.unwrap_or_default();
    if list.path.is_ident("all") {
        parts.iter().any(only_in_tests)
    } else {
        list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(only_in_tests)
    }
}

fn path_of(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &attribute.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Code {
        Code::read(text).expect("Rust")
    }

    #[test]
    fn assertions_outside_tests_are_counted_and_unreachable_is_none() {
        let code = read(
            "const _: () = assert!(size_of::<u8>() == 1);
            fn one() {
                assert!(true); assert_eq!(1, 1); core::assert_ne!(1, 2);
                debug_assert!(true); debug_assert_eq!(1, 1); debug_assert_ne!(1, 2);
                unreachable!();
            }
            fn two() { fn inner() { assert!(true) } inner() }
            fn three() {
                #[cfg(test)]
                assert!(true);
                #[cfg(test)]
                { assert!(true); }
            }
            #[cfg(test)]
            fn four() { assert!(true) }
            #[test]
            fn five() { assert!(true) }
            impl Six { #[cfg(all(test, loom))] fn six() { assert!(true) } }
            trait Seven { #[cfg(test)] fn seven() { assert!(true) } }
            #[cfg(any(test, loom))]
            fn eight() { assert!(true) }
            #[cfg(not(test))]
            fn nine() { assert!(true) }
            #[cfg(test)]
            mod tests { fn ten() { assert!(true) } }",
        );
        assert_eq!(code.assertions, 1 + 6 + 1 + 2);
        let each = code.functions.iter().map(|function| (&*function.name, function.assertions));
        assert_eq!(
            each.collect::<Vec<_>>(),
            [("one", 6), ("two", 0), ("inner", 1), ("three", 0), ("eight", 1), ("nine", 1)]
        );
    }

    #[test]
    fn a_function_is_as_long_as_from_its_fn_to_its_last_brace() {
        let code = read(
            "/// Its documentation is none of it,\n#[inline]\nfn short(\n  argument: u8,\n) {\n}\n
            impl Of { fn two() {\n} }
            trait With { fn none(); fn default(&self) {\n\n} }",
        );
        let each = code.functions.iter().map(|function| (&*function.name, function.lines()));
        assert_eq!(each.collect::<Vec<_>>(), [("short", 4), ("two", 2), ("default", 3)]);
        assert_eq!(code.functions[0].first, 3);
    }

    #[test]
    fn lines_of_tests_are_not_those_of_the_file() {
        let code = "fn one() {}\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n// End\n";
        assert_eq!(read(code).lines, 2);
        assert_eq!(read(&format!("#![cfg(test)]\n{code}")).lines, 0);
        assert_eq!(read("impl One {\n#[cfg(test)]\nfn two() {\n}\n}\n").lines, 2);
    }

    #[test]
    fn modules_of_tests_are_not_looked_for() {
        let code = read(
            "mod one; #[cfg(test)] mod two; #[path = \"a/b.rs\"] mod three;
            mod four { mod five; } #[cfg(not(all(test, loom)))] mod six;",
        );
        let module = |names: &[&str], path: Option<&str>| Module {
            names: names.iter().map(ToString::to_string).collect(),
            path: path.map(str::to_owned),
        };
        let expected = [
            module(&["one"], None),
            module(&["three"], Some("a/b.rs")),
            module(&["four", "five"], None),
            module(&["six"], None),
        ];
        assert_eq!(code.modules, expected);
    }

    #[test]
    fn calls_are_those_of_methods_of_paths_and_of_names_that_were_imported() {
        let code = read(
            "use crate::other::{self, imported, renamed as local};
            fn all(given: impl Fn()) {
                value.method(); Self::qualified(); other::handed.map(Type::name);
                imported(); local(); given(); assert!(value.inside());
            }",
        );
        let of = |qualifier: &str| Callee::Of(qualifier.to_owned());
        let mut calls: Vec<_> =
            code.calls.iter().map(|call| (&*call.name, &call.callee, call.line)).collect();
        calls.sort_by_key(|call| call.0);
        assert_eq!(
            calls,
            [
                ("handed", &of("other"), 3),
                ("imported", &Callee::Imported, 4),
                ("inside", &Callee::Method, 4),
                ("map", &Callee::Method, 3),
                ("method", &Callee::Method, 3),
                ("name", &of("Type"), 3),
                ("qualified", &of("Self"), 3),
            ]
        );
        assert!(read("#[cfg(test)] use other::two; fn one() { two() }").calls.is_empty());
    }

    #[test]
    fn definitions_say_whether_they_are_methods_of_a_trait_and_public() {
        let code = read(
            "fn free() { fn inner() {} } impl One { pub fn method(&self) {} pub(crate) fn new() {} }
            impl Iterator for One { fn next(&mut self) {} } trait Two { fn two(&self); }",
        );
        let define = |name: &str, method, of_trait, public| Definition {
            name: name.to_owned(),
            method,
            of_trait,
            public,
        };
        let expected = [
            define("free", false, false, false),
            define("method", true, false, true),
            define("new", false, false, false),
            define("next", true, true, false),
            define("two", true, false, true),
        ];
        assert_eq!(code.definitions, BTreeSet::from(expected));
        assert_eq!(code.types, BTreeSet::from(["Two".to_owned()]));
    }
}
