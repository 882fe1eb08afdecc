"""What a decoder-only transformer consists of: enough to count parameters, operations and activations.

Everything is in elements for one token; units and the size of an element come with the costs.
"""

from __future__ import annotations

from cpipe.ir.base import Frozen

__all__ = ["Architecture", "LayerShape", "Linear"]


class Linear(Frozen, frozen=True, kw_only=True):
    """Matrix products of one shape.

    Attributes
    ----------
    inputs, outputs
        Features.
    copies
        How many such matrices the layer holds (two for gate and up, one per expert).
    active
        How many of them work on one token.
    """

    inputs: int
    outputs: int
    copies: int = 1
    active: int = 1

    @property
    def parameters(self) -> int:
        """Weights of all copies [count]."""
        return self.inputs * self.outputs * self.copies

    @property
    def active_parameters(self) -> int:
        """Weights that work on one token [count]; each does one multiplication and one addition."""
        return self.inputs * self.outputs * self.active


class LayerShape(Frozen, frozen=True, kw_only=True):
    """One transformer layer.

    Attributes
    ----------
    hidden
        Features of the residual stream, d.
    heads
        Query heads.
    linears
        Its matrix products.
    other_parameters
        Norms and biases [count].
    score_width, value_width
        Features of all query heads, and of all value heads: what one pair of tokens multiplies in the attention.
    window
        Tokens that a token attends to; None for all before it.
    input_elements
        Distinct inputs of the matrix products [elements/token]; the weight gradient needs them.
    kept_elements
        What else the backward needs: inputs of norms, of the attention core and of the gate [elements/token].
    output_elements
        Outputs of the matrix products [elements/token]; their gradients are needed by the weight gradient too.
    """

    hidden: int
    heads: int
    linears: tuple[Linear, ...]
    other_parameters: int
    score_width: int
    value_width: int
    window: int | None
    input_elements: int
    kept_elements: int
    output_elements: int

    @property
    def parameters(self) -> int:
        """All parameters of the layer [count]."""
        return sum(linear.parameters for linear in self.linears) + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Weights of the matrix products that work on one token [count]."""
        return sum(linear.active_parameters for linear in self.linears)


class Architecture(Frozen, frozen=True, kw_only=True):
    """A decoder-only transformer: an embedding, layers, a final norm and a head.

    Attributes
    ----------
    name
        Of the model's family, as its configuration has it.
    hidden, vocabulary
        Features of the residual stream; rows of the embedding.
    tied
        Whether the head's weights are the embedding's.
    layers
        In flow order.
    uncounted
        Parts of the model that the configuration names and nobody counts here, in words.
    """

    name: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[LayerShape, ...]
    uncounted: tuple[str, ...] = ()

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding [count]."""
        return self.vocabulary * self.hidden

    @property
    def head_parameters(self) -> int:
        """Final norm and head as they stand on the last stage, a tied copy included [count]."""
        return self.hidden + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once [count]."""
        inner = sum(layer.parameters for layer in self.layers)
        return inner + self.embedding_parameters + self.head_parameters - self.tied * self.embedding_parameters
